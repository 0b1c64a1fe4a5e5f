"""What is said of a run: by what its scheduler answers, and by what its jobs left."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.batch_systems import Slurm
from cluster.records import REASONS, Jobs, RunStatus, explain, now, status_of
from cluster.scheduler import JobPlace
from command.arguments import read_point
from command.main import main
from command.recipe.path_checks import named_runs
from components.checkpoint.metadata import RunProgress
from components.errors import RecipeError
from components.run.event_log import EventLog
from components.run.folder import RunFolder
from components.run.writer_lock import train_alone
from tests.cluster.programs import Programs, queued

Run = Callable[..., Jobs]


@pytest.fixture
def jobs(run_on: Run, programs: Programs) -> Jobs:
    """A run submitted as 77, of which the queue knows nothing."""
    programs.add("squeue")
    programs.add("sbatch")  # a host without it asks no scheduler
    jobs = run_on("juwels")
    jobs.add_submission("77", at=now(), words=[], jobs=4)
    return jobs


def ask(jobs: Jobs) -> RunStatus:
    return status_of(jobs.folder.path, Slurm())


def begin(jobs: Jobs, job: str) -> None:
    jobs.begin(JobPlace(job=job, attempt=0, nodes=("n1",)))


def end(jobs: Jobs, job: str, *, ended: str, why: str = "") -> None:
    begin(jobs, job)
    jobs.end(jobs.all()[-1], ended=ended, why=why, bad_nodes=())


def test_a_run_that_nobody_submitted(run_on: Run) -> None:
    found = status_of(run_on("juwels").folder.path, Slurm())
    assert (found.state, found.chain, found.queued) == ("not submitted", None, None)


def test_a_run_of_this_machine_is_what_its_lock_and_its_files_say(run_on: Run) -> None:
    folder = run_on("local").folder

    def said() -> tuple[str, str]:
        found = status_of(folder.path, None)
        assert (found.chain, found.jobs) == (None, ())
        return found.state, found.why

    go_on = f"go on: python run.py resume={folder.path}"
    assert said() == ("killed", f"it ended before its first step; {go_on}")
    log = EventLog(file=folder.journal, writes=True, retry_seconds=0)
    with train_alone(folder.path, "run", print):
        state, why = said()
        assert (state, why.partition(" on host")[0]) == ("running", f"process {os.getpid()}")
        log.note("start", RunProgress(0, 0), "a run begins", {})
    assert said() == ("killed", f"it ended without a word; {go_on}")
    folder.write_json("results.json", {"status": "stopped"})
    assert said() == ("stopped", go_on)
    folder.write_json("results.json", {"status": "finished"})
    assert said() == ("finished", "")


def test_a_run_of_somebody_else_whose_lock_is_closed_is_unknown(
    run_on: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_on("local").folder

    def closed(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("cluster.records.writer_of", closed)  # root may open everything
    found = status_of(folder.path, None)
    assert found.state == "unknown"
    assert found.why == "whether it runs: writer.lock cannot be opened: Permission denied"


def test_runs_of_this_machine_have_a_row_each_and_no_jobs(
    run_on: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_on("local").folder.path
    assert main(["action=status", f"run={run}"]) == 0
    said = capfd.readouterr().out
    assert "killed" in said
    assert "attempt" not in said


def test_a_run_whose_job_runs(jobs: Jobs, programs: Programs) -> None:
    lines = ("77_2|RUNNING|None|jwb[0001-0128]", "77_3|PENDING|JobArrayTaskLimit|")
    programs.add("squeue", says=queued(jobs.path, *lines))
    found = ask(jobs)
    assert (found.state, found.why) == ("running", "job 77_2 on jwb[0001-0128]")
    assert [(job.job, job.state) for job in found.queued or ()] == [
        ("77_2", "running"),
        ("77_3", "pending"),
    ]
    assert programs.calls() == [
        "squeue --noheader --array --jobs=77 "
        "--Format=JobArrayID:|,State:|,Reason:|,NodeList:|,UserName:|,STDOUT:|"
    ]


def test_a_run_that_waits_says_for_what(jobs: Jobs, programs: Programs) -> None:
    programs.add("squeue", says=queued(jobs.path, "77_1|PENDING|AssocGrpBillingMinutes|"))
    found = ask(jobs)
    assert found.state == "pending"
    assert found.why.endswith("will not start before the account has budget again")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "ReqNodeNotAvail, UnavailableNodes:n1",
            f"ReqNodeNotAvail: {REASONS['ReqNodeNotAvail']}",
        ),
        ("(Priority)", f"Priority: {REASONS['Priority']}"),
        ("SomethingNew", "SomethingNew"),
        (
            "Not Running: Insufficient amount of resource",
            "Not Running: Insufficient amount of resource",
        ),
        ("", ""),
    ],
)
def test_a_reason_is_put_in_words_where_they_are_known(reason: str, said: str) -> None:
    assert explain(reason) == said


def test_a_run_that_has_finished_is_not_asked_about(jobs: Jobs, programs: Programs) -> None:
    jobs.folder.write_json("results.json", {"status": "finished"})
    assert ask(jobs).state == "finished"


def test_a_run_that_stopped_or_failed_says_why(jobs: Jobs) -> None:
    end(jobs, "77_1", ended="stopped")
    assert (ask(jobs).state, ask(jobs).why) == ("stopped", "")
    end(jobs, "77_2", ended="failed", why="rank 3: loss is NaN")
    assert (ask(jobs).state, ask(jobs).why) == ("failed", "rank 3: loss is NaN")


def test_a_run_whose_job_ended_without_a_word_is_lost(jobs: Jobs) -> None:
    begin(jobs, "77_1")
    found = ask(jobs)
    assert (found.state, found.why) == (
        "lost",
        "job 77_1 ended without a word: jobs/77_1.log has its last",
    )


def test_a_run_whose_jobs_left_the_queue_before_any_began_is_lost(jobs: Jobs) -> None:
    end(jobs, "77_1", ended="failed", why="long ago")
    jobs.add_submission("78", at=now(), words=[], jobs=4)
    found = ask(jobs)
    assert found.state == "lost"
    assert found.why.endswith("before any of them began: were they cancelled?")
    assert len(found.jobs) == 1


def test_jobs_that_slurm_has_forgotten_are_gone(jobs: Jobs, programs: Programs) -> None:
    error = "slurm_load_jobs error: Invalid job id specified"
    programs.add("squeue", error=error, status=1)
    assert ask(jobs).queued == ()


def test_a_scheduler_that_does_not_answer_leaves_the_state_unknown(
    jobs: Jobs, programs: Programs
) -> None:
    programs.add("squeue", error="Unable to contact slurm controller\n", status=1)
    found = ask(jobs)
    assert (found.state, found.queued) == ("unknown", None)
    assert found.why == "squeue: Unable to contact slurm controller"
    assert status_of(jobs.folder.path, None).why == "the scheduler is not reached from here"


def test_a_folder_without_a_recipe_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"run: .* is no run folder: it has no recipe\.json"):
        status_of(tmp_path, None)


def test_runs_are_named_one_by_one_or_by_the_folder_that_holds_them(
    jobs: Jobs, tmp_path: Path
) -> None:
    run = jobs.folder.path
    assert named_runs(read_point([f"run={run}"])) == [run]
    assert named_runs(read_point([f"run={tmp_path}"])) == [run]
    assert named_runs(read_point([f"runs=[{run},{tmp_path}]"])) == [run, run]


@pytest.mark.parametrize("action", ["status", "cancel"])
def test_without_a_run_there_is_nothing_to_ask_about(
    action: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([f"action={action}"]) == 2
    assert (
        "run: no run is named\n  write run=FOLDER, or runs=[FOLDER,...]"
        in capfd.readouterr().err
    )


def test_one_run_is_shown_with_its_jobs_and_several_as_rows(
    jobs: Jobs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    end(jobs, "77_1", ended="failed", why="rank 3: loss is NaN")
    assert main(["action=status", f"run={jobs.folder.path}"]) == 0
    shown = capfd.readouterr().out
    assert shown.count("rank 3: loss is NaN") == 2
    assert "from tokens" in shown
    assert main(["action=status", f"run={tmp_path}"]) == 0
    shown = capfd.readouterr().out
    assert shown.count("rank 3: loss is NaN") == 1
    assert "from tokens" not in shown


def test_of_runs_in_one_folder_each_row_has_the_run_s_own_name(
    run_on: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = run_on("juwels")
    end(jobs, "1", ended="failed", why="rank 3: [/x] is no :warning:")
    folder = tmp_path / ("a_long_name_" * 8)
    folder.mkdir()
    jobs.folder.path.rename(folder / "optimizer.lr=0.0001")
    shutil.copytree(folder / "optimizer.lr=0.0001", folder / "optimizer.lr=0.0003")
    Jobs(RunFolder(folder / "optimizer.lr=0.0003")).add_submission(
        "77", at="", words=[], jobs=1
    )
    assert main(["action=status", f"run={folder}"]) == 0
    shown = capfd.readouterr().out
    assert [shown.count(f"optimizer.lr={rate}") for rate in ("0.0001", "0.0003")] == [1, 1]
    assert main(["action=status", f"run={folder / 'optimizer.lr=0.0001'}"]) == 0
    assert "rank 3: [/x] is no :warning:" in capfd.readouterr().out


def test_what_jobs_and_the_scheduler_said_does_not_act_on_the_terminal(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    end(jobs, "77_1", ended="failed", why="\x1b]0;x\a\u202e [/nope]")
    programs.add("squeue", error="\x1b[2J[/nope]", status=1)
    assert main(["action=status", f"run={jobs.folder.path}"]) == 0
    shown = capfd.readouterr().out
    assert "\u241b]0;x\u2407\ufffd [/nope]" in shown
    assert "squeue: \u241b[2J[/nope]" in shown
    assert not any(one in shown for one in ("\x1b", "\a", "\u202e"))
