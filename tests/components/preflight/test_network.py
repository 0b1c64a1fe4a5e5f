"""No check needs a network."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cluster.staging.test_install import HAS_NAMESPACES, OFFLINE
from tests.life.conftest import TINY, command, environment


@pytest.mark.long
@pytest.mark.skipif(not HAS_NAMESPACES, reason="no network namespace can be made here")
def test_no_check_asks_for_anything_over_the_network(tmp_path: Path) -> None:
    words = [*OFFLINE, *command(*TINY, "action=preflight", "output=json")]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    (node,) = json.loads(done.stdout)["nodes"]
    verdicts = {one["check"]: one["verdict"] for one in node["findings"]}
    assert {"devices", "product", "data"} < set(verdicts)
    # Which versions are installed here is no matter of a network.
    assert [check for check in verdicts if verdicts[check] == "bad"] in ([], ["packages"])
