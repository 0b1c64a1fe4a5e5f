"""Trees and sweeps on a real Slurm: one node is put back, a few points run at a time."""

import json
import sys
from pathlib import Path

import pytest

from cluster.chain import JobAttempt
from cluster.records import Jobs
from cluster.slurm import Slurm
from cluster.status import RunStatus, status_of
from command.main import main
from command.run_tree.nodes import nodes_of, state_of
from components.report.measurements import read_evaluations
from components.run.folder import RunFolder
from tests.cluster.programs import Capture, Patch
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import Submit, status, submit, wait_until
from tests.life.conftest import TINY, entries

__all__ = ["submit"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]

SAVED, TOTAL = 1_024, 4_096
TREE = {
    "cool_a": {"at_tokens": 2_048, "with": "optimizer", "set": {"budget.total_tokens": 3_072}},
    "cool_b": {"at_tokens": 3_072, "with": "optimizer", "set": {"budget.total_tokens": 5_120}},
    "mean": {"at_tokens": 4_096, "merge": {"last": 2}},
    "long": {
        "of": "mean",
        "with": "weights",
        "set": {"budget.sequence_length": 128, "budget.total_tokens": 1_024},
    },
    "judged": {"every_tokens": 2_048, "evaluate": {}},
    "judged_a": {"of": "cool_a", "at_tokens": 3_072, "evaluate": {}},
}


def text(value: object) -> str:
    """Write a node as a word of the command has it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {text(one)}' for key, one in value.items())}}}"
    return str(value)


@pytest.mark.long
def test_tree_ends_though_one_node_is_put_back(slurm: LocalSlurm, submit: Submit) -> None:
    # Named they are final: no scale shrinks them.
    named = [f"children.{name}={text(one)}" for name, one in TREE.items()]
    own = (f"budget.total_tokens={TOTAL}", "cluster.nodes=1")
    saves = (f"checkpoint.every_tokens={SAVED}", "checkpoint.keep=1", "parallelism.data=4")
    trunk = submit("trunk", *own, *saves, "site.account=kitchen", "cluster.hours=0.2", *named)
    nodes = {node.name: node for node in nodes_of(trunk)}
    child = nodes["cool_b"].folder_path
    wait_until(
        slurm, trunk, lambda: Jobs(RunFolder(child)).load_chain().open_attempt is not None, 400
    )
    attempt = Jobs(RunFolder(child)).load_chain().open_attempt
    assert attempt is not None
    slurm.call("scontrol", "requeue", attempt.job)

    def grown() -> bool:
        return {state_of(one) for one in nodes.values()} == {"finished"}

    wait_until(slurm, trunk, grown, 900)
    attempts = Jobs(RunFolder(child)).load_chain().attempts
    assert len(attempts) > 1
    assert [one["tokens"] for one in entries(child, "step")][-1] == 5_120
    for name in ("cool_a", "cool_b", "long"):
        submissions = Jobs(RunFolder(nodes[name].folder_path)).load_chain().submissions
        assert len(submissions) == 1, name
    assert len(Jobs(RunFolder(trunk)).load_chain().attempts) == 1
    assert {one["tokens_trained"] for one in read_evaluations(trunk)} == {2_048, 4_096}
    assert {one["tokens_trained"] for one in read_evaluations(nodes["cool_a"].folder_path)} == {
        3_072
    }


CANCELLED = {
    "cooled": {"at_tokens": 2_048, "with": "optimizer", "set": {"budget.total_tokens": 3_072}},
    "mean": {"at_tokens": 4_096, "merge": {"last": 2}},
    "given": {"of": "mean", "export": {}},
    "judged": {"at_tokens": 4_096, "evaluate": {}},
}


@pytest.mark.long
def test_resume_continues_cancelled_tree(slurm, submit, capsys):
    def states() -> dict[str, str]:
        capsys.readouterr()
        assert main(["action=status", f"run={trunk}", "output=json"]) == 0
        shown = json.loads(capsys.readouterr().out)["children"]
        return {name: one["state"] for name, one in shown.items()}

    def queue():
        return slurm.call("squeue", "--noheader", "--format=%j")

    named = [f"children.{name}={text(one)}" for name, one in CANCELLED.items()]
    own = (f"budget.total_tokens={TOTAL}", "cluster.nodes=1", "cluster.jobs=1")
    saves = (f"checkpoint.every_tokens={SAVED}", "checkpoint.keep=1", "parallelism.data=4")
    trunk = submit("stopped", *own, *saves, "site.account=kitchen", "cluster.hours=0.2", *named)
    wait_until(slurm, trunk, lambda: status(trunk).state in {"running", "finished"}, 100)
    slurm.call("scontrol", "update", "PartitionName=booster", "State=DOWN")
    try:
        wait_until(slurm, trunk, lambda: status(trunk).state == "finished", 100)
        wait_until(slurm, trunk, lambda: not status(trunk).queued, 100)
        waiting = {"cooled": "pending", "mean": "submitted", "judged": "submitted"}
        assert states() == {**waiting, "given": "waiting"}
        assert main(["action=cancel", f"run={trunk}"]) == 0
        wait_until(slurm, trunk, lambda: not queue(), 30)
        left = {"cooled": "cancelled", "mean": "lost", "judged": "due", "given": "waiting"}
        assert states() == left
        assert main([f"resume={trunk}", "checkpoint.keep=2"]) == 2
        assert main([f"resume={trunk}", "site.account=kitchen"]) == 0
        assert len(queue().split()) == 3
        assert main([f"resume={trunk}", "site.account=kitchen"]) == 0
        assert len(queue().split()) == 3  # nothing is submitted twice
    finally:
        slurm.call("scontrol", "update", "PartitionName=booster", "State=UP")
    wait_until(slurm, trunk, lambda: {*states().values()} == {"finished"}, 400)
    assert len(Jobs(RunFolder(trunk)).load_chain().attempts) == 1
    assert len(Jobs(RunFolder(trunk / "children" / "cooled")).load_chain().attempts) == 1


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
)
# Five sequences are no whole number of microbatches of four.
POINTS = (
    *("budget.global_batch_tokens=256,320,512,1_024", "optimizer.lr=1e-4,3e-4,1e-3"),
    "at_most=3",
)


def at_once(jobs: list[JobAttempt]) -> int:
    """Count how many jobs were alive together at most."""
    return max(
        sum(other.began_at <= job.began_at < str(other.ended_at) for other in jobs)
        for job in jobs
    )


@pytest.fixture
def here(slurm: LocalSlurm, tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder of one's own, with the real Slurm at hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def test_points_run_or_are_explained(slurm: LocalSlurm, here: Path, capfd: Capture) -> None:
    folder = here / "sweep"
    words = [*SWEEP, *POINTS, f"run={folder}"]
    assert main(words) == 2
    said = capfd.readouterr()
    assert said.err.count("] submitted ") == 9
    assert said.err.count("budget.global_batch_tokens: 5 sequences per step are not") == 3
    assert "12 points" in said.out
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
    assert said.err.count("not submitted: the run in ") == 9
    assert " submitted " not in said.err
    assert main(["action=status", f"run={folder}", "output=json"]) == 0
    shown = json.loads(capfd.readouterr().out)["runs"]
    assert [one["state"] for one in shown] == ["finished"] * 9


STUDY = """
name: rates
description: Which rate and batch learn most of a few sequences.
recipe: teuken7b
cluster: juwels
set: {cluster.hours: 0.5}
space:
  optimizer.lr: {low: 1.0e-4, high: 1.0e-2, log: true}
  sequences: [4, 5, 8]
products: {budget.global_batch_tokens: [64, sequences]}
objective: {measured: held_out.final, planned: null, direction: minimize}
search: {sampler: tpe, trials: 6, at_once: 2, seed: 3, poll_seconds: 2}
published: {}
"""


@pytest.mark.long
def test_study_submits_points_and_learns_from_results(here: Path, capfd: Capture) -> None:
    (here / "rates.yaml").write_text(STUDY)
    kept = [word for word in SWEEP if not word.startswith(("recipe=", "cluster.hours="))]
    words = [*kept, "study=rates.yaml", f"run={here / 'study'}", "output=json"]
    assert main(words) == 0
    found = json.loads(capfd.readouterr().out)
    assert len(found["trials"]) == 6
    runs = {}
    for run in sorted((here / "study").glob("*/recipe.json")):
        status = status_of(run.parent, Slurm())
        assert status.state == "finished"
        assert len(status.jobs) == 1
        runs[status.run] = status.jobs[0]
    assert runs
    assert at_once(list(runs.values())) <= 2
    figures = []
    for trial in found["trials"]:
        rate, sequences = (trial["point"][key] for key in ("optimizer.lr", "sequences"))
        if sequences == 5:
            assert "5 sequences per step" in trial["why"]
            continue
        run = here / "study" / f"optimizer.lr={rate},sequences={sequences}"
        results = json.loads((run / "results.json").read_text())
        assert trial["figure"] == results["held_out"]["final"]
        recipe = json.loads((run / "recipe.json").read_text())
        assert recipe["budget"]["global_batch_tokens"] == 64 * sequences
        assert recipe["optimizer"]["lr"] == rate
        figures.append(trial["figure"])
    assert found["best"][0]["figure"] == min(figures)
    assert main(words) == 0
    assert json.loads(capfd.readouterr().out)["trials"] == found["trials"]
    assert [len(status_of(Path(run), Slurm()).jobs) for run in runs] == [1] * len(runs)
