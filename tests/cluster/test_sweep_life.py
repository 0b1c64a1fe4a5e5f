"""A sweep on a real Slurm: what can run runs, a few at a time; the rest is explained."""

import json
import sys
from pathlib import Path

import pytest

from cluster.records import JobRecord
from cluster.slurm import Slurm
from cluster.status import RunStatus, status_of
from command.main import main
from tests.cluster.slurm import LocalSlurm
from tests.life.conftest import TINY

OWN = ("budget.", "checkpoint.", "evaluation.", "optimizer.")
SWEEP = (
    *("-m", *(word for word in TINY if not word.startswith(OWN))),
    *("cluster=juwels", "scale=mini", "cluster.device=cpu", "cluster.hardware=none"),
    *("cluster.nodes=1", "cluster.devices_per_node=1", "cluster.site.directives=[]"),
    *("cluster.site.modules=[]", "cluster.site.environment={}", "cluster.site.host_suffix=''"),
    *("cluster.site.binding.cores_per_rank=1", "cluster.hours=0.5", "cluster.jobs=1"),
    *("site.account=kitchen", f"site.venv={sys.prefix}"),
    *("budget.sequence_length=64", "budget.total_tokens=1_024"),
    *("checkpoint.every_tokens=1_024", "evaluation.every_tokens=1_024"),
    # Five sequences are no whole number of microbatches of four.
    *("budget.global_batch_tokens=256,320,512,1_024", "optimizer.lr=1e-4,3e-4,1e-3"),
    "at_most=3",
)


def at_once(jobs: list[JobRecord]) -> int:
    """Count how many jobs were alive together at most."""
    return max(
        sum(other.began_at <= job.began_at < str(other.ended_at) for other in jobs)
        for job in jobs
    )


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_nine_of_twelve_points_run_and_three_are_explained(
    slurm: LocalSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "sweep"
    words = [*SWEEP, f"run={folder}"]
    assert main(words) == 2
    said = capfd.readouterr()
    assert said.err.count("] submitted ") == 9
    assert said.err.count("budget.global_batch_tokens: 5 sequences a step do not") == 3
    assert said.out.count("budget.global_batch_tokens=") == 9  # one table, a row a run
    runs = sorted(folder.iterdir())
    assert len(runs) == 9

    def states() -> list[RunStatus]:
        return [status_of(run, Slurm()) for run in runs]

    def over() -> bool:
        return all(one.state not in {"pending", "running"} for one in states())

    slurm.wait_for(over, 500)
    assert {one.state for one in states()} == {"finished"}, [one.why for one in states()]
    assert {one.tokens for one in states()} == {1_024}
    jobs = [job for one in states() for job in one.jobs]
    assert len(jobs) == 9
    assert at_once(jobs) <= 3

    assert main(words) == 2
    said = capfd.readouterr()
    assert said.err.count("left as it is: the run in ") == 9
    assert " submitted " not in said.err
    assert main(["action=status", f"run={folder}", "output=json"]) == 0
    shown = json.loads(capfd.readouterr().out)["runs"]
    assert [one["state"] for one in shown] == ["finished"] * 9
