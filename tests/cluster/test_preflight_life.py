"""Bad nodes on a real Slurm: the verdict names them, and the run continues without them.

Where a GPU is to be lost, each node has a driver of its own (`driver.py`).
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command.arguments import ROOT
from components.run.history import read_lines
from tests.cluster.driver import LIBRARY, ON_THE_PROCESSOR, RUNTIME, build_driver
from tests.cluster.planting import SLOW, plant
from tests.cluster.slurm import JUWELS, LocalSlurm, local_slurm
from tests.cluster.test_slurm_life import HERE, SMALL, Submit, finish, submit
from tests.life.conftest import entries

__all__ = ["submit"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]

SHORT = (
    *("cluster.nodes=2", "cluster.devices_per_node=1", "cluster.site.directives=[]"),
    *("cluster.hours=0.5", "cluster.jobs=3", "evaluation.every_tokens=5_120"),
    *("budget.total_tokens=10_240", "checkpoint.every_tokens=5_120"),
)
ON_NODE = "SLURMD_NODENAME"

CORES = os.sched_getaffinity(0)
# A file system of the node's own, and full: its daemon has mounts that no other process sees.
FULL = ("unshare", "--mount", "--propagation=private", "sh", "-c")
FILL = 'mount -t tmpfs -o size=4m small "$0"; head -c 4M /dev/zero > "$0/left over"; exec "$@"'
MASK = "CUDA_VISIBLE_DEVICES"  # as JUWELS's profile sets it


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    """Five nodes: three to be bad, two to train on."""
    with local_slurm(5, JUWELS) as cluster:
        yield cluster


def verdict(run: Path) -> dict[str, Any]:
    """Read the verdict on the nodes of the run's only job from the event log."""
    (event,) = (one for one in read_lines(run / "events.jsonl") if one["kind"] == "preflight")
    return event


def test_next_job_avoids_a_bad_node(slurm: LocalSlurm, submit: Submit, tmp_path: Path) -> None:
    bad = slurm.nodes[0]
    metadata = "Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n"
    file = "numpy-0.0.1.dist-info/METADATA"
    venv = plant(tmp_path / "venv", ON_NODE, bad, file, metadata)
    run = submit("package", *SHORT, venv)
    end = finish(slurm, run)
    assert end.state == "finished"
    first, second = end.jobs
    assert (first.ended, first.bad_nodes, first.tokens_at_end) == ("failed", (bad,), 0)
    assert f"preflight: {bad}: packages: numpy 0.0.1, not " in first.why
    assert second.nodes == slurm.nodes[1:3]


def test_command_asks_nodes_of_a_job(slurm: LocalSlurm, home: Path, tmp_path: Path) -> None:
    words = [*SMALL, *HERE, *SHORT, "action=preflight", "output=json"]
    words = [word for word in words if not word.startswith("site.")]
    command = shlex.join([sys.executable, str(ROOT / "run.py"), *words])
    out, log = tmp_path / "out", tmp_path / "log"
    ask = ["sbatch", "--wait", "--nodes=3", "--ntasks-per-node=1", f"--chdir={home}"]
    slurm.call(*ask, f"--output={out}", f"--error={log}", f"--wrap={command}")
    answer = json.loads(out.read_text())
    assert answer["holds"], log.read_text()
    assert [node["node"] for node in answer["nodes"]] == list(slurm.nodes[:3])
    for node in answer["nodes"]:
        checks = {one["check"]: one["verdict"] for one in node["findings"]}
        assert (checks["clock"], checks["link"]) == ("ok", "unknown")


@pytest.mark.skipif(len(CORES) < 2, reason="of one core none can be taken away")
def test_small_full_or_slow_nodes_are_out(slurm, submit, tmp_path):
    fewer, full, slow, *good = slurm.nodes
    (temporary := tmp_path / "temporary").mkdir()
    slurm.start_again(fewer, "taskset", "--cpu-list", str(min(CORES)))
    slurm.start_again(full, *FULL, FILL, str(temporary))
    run = submit(
        "faults",
        *SHORT,
        "cluster.spare_nodes=3",
        f"cluster.site.environment.TMPDIR={{value: {temporary}, reason: full on one node}}",
        # Nodes of one host may be 2 or 3 times slower than one another; the one that is made
        # slow was 41 to 74 times slower, for half a minute.
        *("cluster.preflight.product_fraction=0.1", "cluster.preflight.answer_seconds=300.0"),
        plant(tmp_path / "venv", ON_NODE, slow, "sitecustomize.py", SLOW),
    )
    end = finish(slurm, run)
    for node in (fewer, full):
        slurm.start_again(node)
    assert end.state == "finished"
    (job,) = end.jobs
    assert job.bad_nodes == (fewer, full, slow)
    event = verdict(run)
    assert event["evidence"] == {
        "nodes": 5,
        "needed": 2,
        "excluded": {fewer: ["cores"], full: ["temporary folder"], slow: ["product"]},
    }
    cause = str(event["cause"])
    assert f"{fewer}: cores: 1, expected {len(CORES)}, the nodes' median" in cause
    assert f"{full}: temporary folder: {temporary}: No space left on device" in cause
    assert f"{slow}: product: " in cause
    assert (run / "preflight" / "nodes").read_text().split() == good
    assert [entry["step"] for entry in entries(run, "step")] == list(range(1, 21))
    assert list(temporary.iterdir()) == []  # nothing of the node's own file system is here


def test_nodes_without_gpus_are_out(slurm: LocalSlurm, submit: Submit, tmp_path: Path) -> None:
    fewer, none, lost, good, _ = slurm.nodes
    figures = {
        fewer: {"devices": 1},
        none: {"devices": -1},
        lost: {"devices": 2, "lost": 1},
        good: {"devices": 2},
    }
    for node, those in figures.items():
        library = build_driver(tmp_path / node, **those)
        slurm.on_node(node, "cp", str(library), str(slurm.local / LIBRARY))
    seen = {"LD_LIBRARY_PATH": f"{slurm.local}", MASK: "'0,1'"}
    run = submit(
        "gpus",
        *(word for word in SHORT if not word.startswith(("cluster.nodes", "cluster.devices"))),
        *("cluster.nodes=1", "cluster.spare_nodes=3", "cluster.devices_per_node=2"),
        "cluster.device=cuda",
        *(
            f"cluster.site.environment.{name}={{value: {value}, reason: planted}}"
            for name, value in seen.items()
        ),
        plant(
            *(tmp_path / "venv", ON_NODE, "*", "sitecustomize.py", RUNTIME),
            before_ranks=ON_THE_PROCESSOR,
        ),
    )
    end = finish(slurm, run)
    assert end.state == "finished"
    (job,) = end.jobs
    assert (job.bad_nodes, job.nodes) == ((fewer, none, lost), slurm.nodes[:4])
    event = verdict(run)
    assert event["evidence"] == {
        "nodes": 4,
        "needed": 1,
        "excluded": {fewer: ["devices"], none: ["devices", "product"], lost: ["memory"]},
    }
    cause = str(event["cause"])
    assert f"{fewer}: devices: 2 cuda devices, one a rank, but torch sees 1 here" in cause
    assert f"{none}: devices: cuda, but torch " in cause
    assert f"{lost}: memory: cuda:1: CUDA error: unknown error, expected an answer" in cause
    assert (run / "preflight" / "nodes").read_text().split() == [good]
    assert [entry["step"] for entry in entries(run, "step")] == list(range(1, 21))
