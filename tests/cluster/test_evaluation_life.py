"""Checkpoints evaluated by jobs of their own on a real Slurm: dealt, found again, lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.slurm import Slurm
from command.evaluate.queue import EvaluationArray, array_folder, read_array
from command.main import main
from components.run.folder import RunFolder
from tests.cluster.programs import Said
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import Submit, finish, submit

__all__ = ["submit"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]
TOKENS = [1_024, 2_048, 3_072]


@pytest.fixture
def trained(slurm: LocalSlurm, submit: Submit) -> Path:
    """A run of one node that kept three checkpoints."""
    words = ("budget.total_tokens=3_072", "checkpoint.every_tokens=1_024")
    kept = ("checkpoint.keep_every_tokens=1_024", "cluster.nodes=1", "parallelism.data=4")
    run = submit("evaluated", *words, *kept)
    assert finish(slurm, run).state == "finished"
    return run


def ask(run: Path, capsys: Said) -> tuple[list[Any], str]:
    """Ask for all checkpoints in jobs; return the answers that there are, and the words."""
    words = ["action=evaluate", f"run={run}", "checkpoints=all", "executor=array"]
    own = ["site.account=kitchen", "cluster.hours=0.1", "output=json"]
    capsys.readouterr()
    assert main([*words, *own]) == 0
    said = capsys.readouterr()
    return json.loads(said.out)["checkpoints"], said.err


def submitted(run: Path) -> tuple[str, EvaluationArray]:
    array = read_array(array_folder(RunFolder(run)))
    assert array is not None
    assert array.job is not None
    return array.job, array


def test_checkpoints_are_evaluated_once(trained: Path, slurm: LocalSlurm, capsys: Said) -> None:
    for node in slurm.nodes:  # nothing starts yet
        slurm.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    found, said = ask(trained, capsys)
    job, array = submitted(trained)
    assert found == []
    assert f"evaluated 0 of 3 checkpoints; submitted {job}" in said
    assert array.groups == [[tokens] for tokens in TOKENS]
    _, said = ask(trained, capsys)
    assert "evaluated 0 of 3 checkpoints; 0 jobs running, 3 queued" in said
    slurm.call("scancel", f"{job}_1")
    for node in slurm.nodes:
        slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
    logs = array_folder(RunFolder(trained)) / "jobs"
    slurm.wait_for(lambda: not Slurm().list_jobs(job, logs), 200)
    found, said = ask(trained, capsys)
    assert [one["tokens_trained"] for one in found] == [TOKENS[0], TOKENS[2]]
    assert "evaluated 2 of 3 checkpoints; submitted" in said
    again, array = submitted(trained)
    assert array.groups == [[TOKENS[1]]]
    slurm.wait_for(lambda: not Slurm().list_jobs(again, logs), 200)
    found, said = ask(trained, capsys)
    assert [one["tokens_trained"] for one in found] == TOKENS
    for one in found:
        logged = one["held_out"]["logged_in_training"]
        assert one["held_out"]["weighted_as_mixture"] == pytest.approx(logged, rel=1e-6)
