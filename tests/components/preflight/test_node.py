"""A node finds itself among those of its job, without a network and without a compiler."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.preflight.node import name_among
from tests.cluster.staging.test_install import HAS_NAMESPACES, OFFLINE
from tests.life.conftest import TINY, command, environment

NAMES = ["x4102c5s2b0n0", "x4102c5s3b0n0", "x4102c5s4b0n0"]
TASK = {"PALS_RANKID": "2", "PALS_LOCAL_RANKID": "0"}


def test_a_listed_node_is_known_by_its_name() -> None:
    own = socket.gethostname().partition(".")[0]
    assert name_among([own, *NAMES], TASK) == own
    assert name_among(NAMES, TASK | {"SLURMD_NODENAME": "x4102c5s3b0n0.site"}) == NAMES[1]


def test_a_node_with_another_name_is_known_by_its_task_number() -> None:
    assert name_among(NAMES, TASK) == NAMES[2]
    with pytest.raises(RecipeError, match="RANK: no launcher sets the node's number in the"):
        name_among(NAMES, {})


def test_a_preflight_does_not_load_torchs_compiler() -> None:
    # its import takes seconds on every node
    code = (
        "import sys, components.preflight.node\n"
        "sys.exit(bool({'torch._dynamo', 'torch._inductor', 'triton'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.long
@pytest.mark.skipif(not HAS_NAMESPACES, reason="no network namespace can be made here")
def test_no_check_needs_a_network(tmp_path: Path) -> None:
    words = [*OFFLINE, *command(*TINY, "action=preflight", "output=json")]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    (node,) = json.loads(done.stdout)["nodes"]
    verdicts = {one["check"]: one["verdict"] for one in node["findings"]}
    assert {"devices", "product", "data"} < set(verdicts)
    # Which versions are installed here is no matter of a network.
    assert [check for check in verdicts if verdicts[check] == "bad"] in ([], ["packages"])
