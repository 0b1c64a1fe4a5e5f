"""Ids of jobs are read from files: no option of a command, no job of somebody else."""

import json
from pathlib import Path

import pytest

from cluster.pbs import Pbs
from cluster.records import Jobs
from cluster.scheduler import Scheduler, check_id, user_name
from cluster.slurm import Slurm
from command.main import main
from components.errors import RecipeError
from tests.cluster.chains import Run
from tests.cluster.jobs import submitted
from tests.cluster.programs import Patch, Programs, Said, queued

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "qsub", "qstat", "qselect", "qdel")
WRONG = ("--me", "-u", "", "77,78", "77 78", "77\n78", "77;rm", "77_[1-4]", "\u0667")


@pytest.fixture
def jobs(run_on: Run, programs: Programs) -> Jobs:
    for name in PROGRAMS:
        programs.add(name)
    return run_on("juwels")


@pytest.mark.parametrize(
    ("scheduler", "ids", "wrong"),
    [
        (Slurm(), ("77", "77_12"), (*WRONG, "77.pbs-0001")),
        (Pbs(), ("77", "77.pbs-0001", "77[].pbs.site.de", "77[3].pbs-0001"), (*WRONG, "77_12")),
    ],
)
def test_each_scheduler_knows_its_ids(
    scheduler: Scheduler, ids: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    for job in ids:
        check_id(scheduler, job, Path("jobs"))
    for job in wrong:
        with pytest.raises(RecipeError) as refused:
            check_id(scheduler, job, Path("jobs"))
        assert refused.value.path == "jobs"
        assert refused.value.problem == f"{job!r} is not a job id of {scheduler.name}"


@pytest.mark.parametrize("action", ["status", "cancel"])
def test_wrong_id_is_refused(action: str, jobs: Jobs, programs: Programs, capfd: Said) -> None:
    submitted(jobs, "--user=walnut", 4)
    assert main([f"action={action}", f"run={jobs.folder.path}"]) == 2
    message = f"{jobs.path}: '--user=walnut' is not a job id of Slurm"
    assert message in capfd.readouterr().err
    line = {"kind": "began", "at": "", "attempt": 0, "nodes": [], "tokens": 0}
    jobs.record.write_text(json.dumps({**line, "job": "../../other/1"}))
    assert main([f"action={action}", f"run={jobs.folder.path}"]) == 2
    assert f"{jobs.record}:1: " in capfd.readouterr().err
    assert programs.calls() == []


@pytest.mark.parametrize("force", ["false", "true"])
def test_foreign_job_is_refused(
    force: str, jobs: Jobs, programs: Programs, capfd: Said
) -> None:
    submitted(jobs, "77", 4)
    run = jobs.folder.path
    programs.add("squeue", says=queued(jobs.path, "77|RUNNING|None|n1", user="walnut"))
    assert main(["action=status", f"run={run}", "output=json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["state"] == "unknown"
    assert shown["why"].startswith("job 77 belongs to user walnut")
    words = ["action=cancel", f"run={run}", f"force={force}"]
    assert main(words) == 2
    said = capfd.readouterr().err
    owner = f"job 77 belongs to user walnut and writes into {jobs.path}; "
    assert said.startswith(f"{run}: {owner}")
    assert f"expected user {user_name()} and folder {jobs.path}" in said
    assert "nothing was cancelled" in said
    programs.add("squeue", says=queued(Path("/elsewhere"), "77|RUNNING|None|n1"))
    assert main(words) == 2
    elsewhere = f"job 77 belongs to user {user_name()} and writes into /elsewhere; "
    assert elsewhere in capfd.readouterr().err
    assert {call.split()[0] for call in programs.calls()} == {"squeue"}
    assert not jobs.load_chain().cancelled
    assert not jobs.folder.stop.exists()


def test_run_is_known_by_any_path(
    jobs: Jobs, programs: Programs, tmp_path: Path, capfd: Said
) -> None:
    submitted(jobs, "77", 4)
    programs.add("squeue", says=queued(jobs.path, "77|PENDING|Priority|"))
    (tmp_path / "link").symlink_to(jobs.folder.path)
    assert main(["action=cancel", f"run={tmp_path / 'link'}"]) == 0
    assert capfd.readouterr().out == "77: cancelled\n"
    assert programs.calls()[-1] == "scancel --state=PENDING 77"


def test_user_without_an_entry_is_named_by_the_environment(monkeypatch: Patch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setenv("LOGNAME", "walnut")
    assert user_name() == "walnut"
