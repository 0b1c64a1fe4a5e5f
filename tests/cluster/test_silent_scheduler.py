"""The status of many runs when the scheduler does not answer."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import scheduler_command
from cluster.records import Jobs
from command.main import main
from tests.cluster.jobs import began, submitted
from tests.cluster.programs import Programs

Run = Callable[..., Jobs]


def test_a_silent_scheduler_is_waited_for_once_whatever_the_number_of_runs(
    run_on: Run, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = run_on("juwels")
    submitted(jobs, "77", 1)
    for number in range(1, 5):
        shutil.copytree(jobs.folder.path, tmp_path / "runs" / str(number))
    programs.add("sbatch")
    monkeypatch.setattr(scheduler_command, "ANSWERS_WITHIN_SECONDS", 0.5)
    programs.script("squeue", "exec sleep 20")
    assert main(["action=status", f"run={tmp_path / 'runs'}"]) == 0
    assert len(programs.calls()) == 1
    programs.add("squeue")
    assert main(["action=status", f"run={tmp_path / 'runs'}"]) == 0
    assert len(programs.calls()) == 2  # one question about all runs


def test_after_squeue_a_silent_scontrol_is_waited_for_once(
    run_on: Run, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = run_on("juwels")
    submitted(jobs, "77", 1)
    began(jobs, "77")
    for number in range(1, 5):
        shutil.copytree(jobs.folder.path, tmp_path / "runs" / str(number))
    for name in ("sbatch", "squeue"):
        programs.add(name)
    monkeypatch.setattr(scheduler_command, "ANSWERS_WITHIN_SECONDS", 0.5)
    programs.script("scontrol", "exec sleep 20")
    assert main(["action=status", f"run={tmp_path / 'runs'}"]) == 0
    assert [call.split()[0] for call in programs.calls()] == ["squeue", "scontrol"]
