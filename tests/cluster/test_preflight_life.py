"""A bad node on a real Slurm: named, left out, and the run goes on without it."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from command.arguments import ROOT
from components.run.history import read_lines
from tests.cluster.planting import CLOCK, plant
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import HERE, SMALL, Submit, finish, home, submit

__all__ = ["home", "submit"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]

SHORT = (
    *("cluster.nodes=2", "cluster.devices_per_node=1", "cluster.site.directives=[]"),
    *("cluster.hours=0.5", "cluster.jobs=3", "evaluation.every_tokens=5_120"),
    *("budget.total_tokens=10_240", "checkpoint.every_tokens=5_120"),
)
ON_NODE = "SLURMD_NODENAME"


def verdict(run: Path) -> dict[str, Any]:
    """Read what the event log tells of the run's one job and its nodes."""
    (event,) = (one for one in read_lines(run / "events.jsonl") if one["kind"] == "preflight")
    return event


def test_a_node_with_a_wrong_clock_is_left_out_and_a_spare_one_takes_its_place(
    slurm: LocalSlurm, submit: Submit, tmp_path: Path
) -> None:
    bad = slurm.nodes[0]  # also the one where the script runs
    venv = plant(tmp_path / "venv", ON_NODE, bad, "sitecustomize.py", CLOCK)
    run = submit("clock", *SHORT, "cluster.spare_nodes=1", venv)
    end = finish(slurm, run)
    assert end.state == "finished"
    (job,) = end.jobs
    assert (job.bad_nodes, len(job.nodes)) == ((bad,), 3)
    event = verdict(run)
    assert event["evidence"] == {"nodes": 3, "needed": 2, "excluded": {bad: ["clock"]}}
    assert f"{bad}: clock: +100." in event["cause"]
    assert (run / "preflight" / "nodes").read_text().split() == list(slurm.nodes[1:])


def test_without_a_spare_node_the_job_ends_at_once_and_the_next_one_avoids_the_bad_node(
    slurm: LocalSlurm, submit: Submit, tmp_path: Path
) -> None:
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
    assert second.nodes == slurm.nodes[1:]


def test_whoever_has_nodes_asks_them_by_the_command(
    slurm: LocalSlurm, home: Path, tmp_path: Path
) -> None:
    words = [*SMALL, *HERE, *SHORT, "action=preflight", "output=json"]
    words = [word for word in words if not word.startswith("site.")]
    command = shlex.join([sys.executable, str(ROOT / "run.py"), *words])
    out, log = tmp_path / "out", tmp_path / "log"
    ask = ["sbatch", "--wait", "--nodes=3", "--ntasks-per-node=1", f"--chdir={home}"]
    slurm.call(*ask, f"--output={out}", f"--error={log}", f"--wrap={command}")
    said = json.loads(out.read_text())
    assert said["holds"], log.read_text()
    assert [node["node"] for node in said["nodes"]] == list(slurm.nodes)
    for node in said["nodes"]:
        checks = {one["check"]: one["verdict"] for one in node["findings"]}
        assert (checks["clock"], checks["link"]) == ("ok", "unknown")
