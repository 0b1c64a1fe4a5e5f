"""Ids of jobs are read from files: no option of a command, no job of somebody else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.pbs import Pbs
from cluster.records import Jobs
from cluster.scheduler import Scheduler, check_id, user_name
from cluster.slurm import Slurm
from command.main import main
from components.errors import RecipeError
from tests.cluster.jobs import submitted
from tests.cluster.programs import Programs, queued

Run = Callable[..., Jobs]
PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "qsub", "qstat", "qselect", "qdel")


@pytest.fixture
def jobs(run_on: Run, programs: Programs) -> Jobs:
    for name in PROGRAMS:
        programs.add(name)
    return run_on("juwels")


@pytest.mark.parametrize("scheduler", [Slurm(), Pbs()])
@pytest.mark.parametrize(
    "job",
    [
        "--me",
        "--user=walnut",
        "-u",
        "",
        "77,78",
        "77 78",
        "77\n78",
        "77;rm",
        "77_[1-4]",
        "\u0667",
    ],
)
def test_what_is_no_id_is_refused_with_its_file(scheduler: Scheduler, job: str) -> None:
    with pytest.raises(RecipeError) as refused:
        check_id(scheduler, job, Path("jobs"))
    assert refused.value.path == "jobs"
    assert refused.value.problem == f"{job!r} is not a job id of {scheduler.name}"


@pytest.mark.parametrize(
    ("scheduler", "ids", "not_its"),
    [
        (Slurm(), ("77", "77_12"), "77.pbs-0001"),
        (Pbs(), ("77", "77.pbs-0001", "77[].pbs.site.de", "77[3].pbs-0001"), "77_12"),
    ],
)
def test_each_scheduler_knows_its_own_ids(
    scheduler: Scheduler, ids: tuple[str, ...], not_its: str
) -> None:
    for job in ids:
        check_id(scheduler, job, Path("jobs"))
    with pytest.raises(RecipeError, match=f"'{not_its}' is not a job id"):
        check_id(scheduler, not_its, Path("jobs"))


@pytest.mark.parametrize("action", ["status", "cancel"])
@pytest.mark.parametrize("job", ["--me", "--user=walnut", "77.pbs"])
def test_nothing_is_called_with_what_is_no_id(
    action: str, job: str, jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    submitted(jobs, job, 4)
    assert main([f"action={action}", f"run={jobs.folder.path}", "force=true"][:2]) == 2
    assert f"{jobs.path}: {job!r} is not a job id of Slurm" in capfd.readouterr().err
    assert programs.calls() == []


def test_a_job_whose_id_is_a_path_elsewhere_is_refused(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    line = {"kind": "began", "at": "", "attempt": 0, "nodes": [], "tokens": 0}
    jobs.record.write_text(json.dumps({**line, "job": "../../other/1"}))
    assert main(["action=status", f"run={jobs.folder.path}"]) == 2
    assert f"{jobs.record}:1: " in capfd.readouterr().err


@pytest.mark.parametrize("force", ["false", "true"])
def test_a_strangers_job_is_not_cancelled(
    force: str, jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    submitted(jobs, "77", 4)
    run = jobs.folder.path
    programs.add("squeue", says=queued(jobs.path, "77|RUNNING|None|n1", user="walnut"))
    words = ["action=cancel", f"run={run}", f"force={force}"]
    assert main(words) == 2
    said = capfd.readouterr().err
    assert said.startswith(
        f"{run}: job 77 belongs to user walnut and writes into {jobs.path}; "
    )
    assert f"expected user {user_name()} and folder {jobs.path}" in said
    assert "nothing was cancelled" in said
    programs.add("squeue", says=queued(Path("/elsewhere"), "77|RUNNING|None|n1"))
    assert main(words) == 2
    assert f"job 77 belongs to user {user_name()} and writes into /elsewhere; " in (
        capfd.readouterr().err
    )
    assert {call.split()[0] for call in programs.calls()} == {"squeue"}
    assert not jobs.load_chain().cancelled
    assert not jobs.folder.stop.exists()


def test_in_a_table_of_runs_a_strangers_job_has_its_line(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    submitted(jobs, "77", 4)
    programs.add("squeue", says=queued(jobs.path, "77|RUNNING|None|n1", user="walnut"))
    assert main(["action=status", f"run={jobs.folder.path}", "output=json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["state"] == "unknown"
    assert shown["why"].startswith("job 77 belongs to user walnut")


def test_a_run_is_its_own_by_whatever_path_it_is_named(
    jobs: Jobs, programs: Programs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    submitted(jobs, "77", 4)
    programs.add("squeue", says=queued(jobs.path, "77|PENDING|Priority|"))
    (tmp_path / "link").symlink_to(jobs.folder.path)
    assert main(["action=cancel", f"run={tmp_path / 'link'}"]) == 0
    assert capfd.readouterr().out == "77: cancelled\n"
    assert programs.calls()[-1] == "scancel --state=PENDING 77"


def test_a_user_whom_the_system_does_not_list_is_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setenv("LOGNAME", "walnut")
    assert user_name() == "walnut"
