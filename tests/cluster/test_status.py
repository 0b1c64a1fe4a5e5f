"""What is said of a run: by what its scheduler answers, and by what its jobs left."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.chain import ExcludedEvent
from cluster.decisions import avoided_until
from cluster.records import Jobs, utc_now
from cluster.scheduler import user_name
from cluster.slurm import Slurm
from cluster.status import RunStatus, status_of
from command.arguments import read_point
from command.main import main
from command.recipe.path_checks import named_runs
from components.checkpoint.metadata import RunProgress
from components.command_line import command_line
from components.errors import RecipeError
from components.run.event_log import EventLog
from components.run.folder import RunFolder
from components.run.writer_lock import train_alone
from tests.cluster.jobs import began, cancelled, ended, submitted
from tests.cluster.programs import Programs, queued

Run = Callable[..., Jobs]


@pytest.fixture
def jobs(run_on: Run, programs: Programs) -> Jobs:
    """A run submitted as 77, of which the queue knows nothing."""
    programs.add("squeue")
    programs.add("sbatch")  # a host without it asks no scheduler
    jobs = run_on("juwels")
    submitted(jobs, "77", 4)
    return jobs


def ask(jobs: Jobs) -> RunStatus:
    return status_of(jobs.folder.path, Slurm())


def begin(jobs: Jobs, job: str) -> None:
    began(jobs, job)


def end(jobs: Jobs, job: str, *, how: str, why: str = "") -> None:
    ended(jobs, began(jobs, job), how, why=why)


def test_a_run_that_nobody_submitted(run_on: Run) -> None:
    found = status_of(run_on("juwels").folder.path, Slurm())
    assert (found.state, found.chain, found.queued) == ("not submitted", None, None)


def test_a_run_of_this_machine_is_what_its_lock_and_its_files_say(run_on: Run) -> None:
    folder = run_on("local").folder

    def said() -> tuple[str, str]:
        found = status_of(folder.path, None)
        assert (found.chain, found.jobs) == (None, ())
        return found.state, found.why

    go_on = f"continue: {command_line(f'resume={folder.path}')}"
    assert said() == ("killed", "the run ended before its first step")
    assert status_of(folder.path, None).next == go_on
    log = EventLog(file=folder.events, writes=True, retry_seconds=0)
    with train_alone(folder.path, "run"):
        state, why = said()
        assert (state, why.partition(" on host")[0]) == ("running", f"process {os.getpid()}")
        log.write_event("start", RunProgress(0, 0), "a run begins", {})
    assert said() == ("killed", "the run ended without a message")
    assert status_of(folder.path, None).last == "start at step 0: a run begins"
    folder.write_json("results.json", {"status": "stopped"})
    assert said() == ("stopped", "")
    assert status_of(folder.path, None).next == go_on
    folder.write_json("results.json", {"status": "finished"})
    assert said() == ("finished", "")


def test_a_run_of_somebody_else_whose_lock_is_closed_is_unknown(
    run_on: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_on("local").folder

    def closed(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("cluster.status.writer_of", closed)  # root may open everything
    found = status_of(folder.path, None)
    assert found.state == "unknown"
    assert (
        found.why
        == "cannot check if the run is active: cannot open writer.lock: Permission denied"
    )


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
        f"squeue --noheader --array --user={user_name()} "
        "--Format=JobArrayID:|,State:|,Reason:|,NodeList:|,UserName:|,STDOUT:|"
    ]


def test_a_run_that_waits_says_for_what(jobs: Jobs, programs: Programs) -> None:
    programs.add("squeue", says=queued(jobs.path, "77_1|PENDING|AssocGrpBillingMinutes|"))
    found = ask(jobs)
    assert found.state == "pending"
    assert found.why == "AssocGrpBillingMinutes"


def test_a_run_that_has_finished_is_not_asked_about(jobs: Jobs, programs: Programs) -> None:
    jobs.folder.write_json("results.json", {"status": "finished"})
    assert ask(jobs).state == "finished"


def test_a_run_that_stopped_or_failed_says_why(jobs: Jobs) -> None:
    end(jobs, "77_1", how="stopped")
    assert (ask(jobs).state, ask(jobs).why) == ("stopped", "")
    end(jobs, "77_2", how="failed", why="rank 3: loss is NaN")
    assert (ask(jobs).state, ask(jobs).why) == ("failed", "rank 3: loss is NaN")


def test_a_run_whose_job_ended_without_a_word_is_lost(jobs: Jobs, programs: Programs) -> None:
    begin(jobs, "77_1")
    gone = "job 77_1 ended without a message: it was killed or its node failed"
    log = "see jobs/77_1.log"
    programs.add("scontrol", error="slurm_load_jobs error: Invalid job id", status=1)
    found = ask(jobs)
    assert (found.state, found.why) == ("lost", f"{gone}: {log}")
    assert f"python run.py resume={jobs.folder.path}" in found.next
    programs.add("scontrol", says="JobId=77 JobState=TIMEOUT Reason=TimeLimit")
    killed = "job 77_1 was killed at its time limit before it saved a checkpoint"
    assert ask(jobs).why == f"{killed}: {log}"


def test_a_job_that_no_queue_has_is_not_shown_as_not_ended(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    begin(jobs, "77_1")
    programs.add("scontrol", says="JobId=77 JobState=TIMEOUT Reason=TimeLimit")
    assert main(["action=status", f"run={jobs.folder.path}"]) == 0
    shown = capfd.readouterr().out
    assert "not ended" not in shown
    assert "killed at its time limit" in shown
    programs.add("squeue", says=queued(jobs.path, "77_1|RUNNING|None|n1"))
    assert main(["action=status", f"run={jobs.folder.path}"]) == 0
    assert capfd.readouterr().out.count("running") == 2  # the run and its job, listed once


def test_what_happened_last_and_what_happens_next_is_told(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    end(jobs, "77_1", how="failed", why="rank 3: loss is NaN")
    waits = queued(jobs.path, "77_2|PENDING|Priority|")
    programs.add("squeue", says=waits)
    found = ask(jobs)
    assert found.last.endswith(" UTC: job 77_1 failed at 0 tokens: rank 3: loss is NaN")
    assert found.next == "job 77_2 continues from 0 tokens when it starts"
    assert main(["action=status", f"run={jobs.folder.path}"]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "next job 77_2 continues from 0 tokens when it starts" in shown
    begin(jobs, "77_2")
    running = queued(jobs.path, "77_2|RUNNING|None|n1")
    programs.add("squeue", says=running + queued(jobs.path, "77_3|PENDING|Dependency|"))
    assert ask(jobs).next == "saves before its time limit; then job 77_3 continues"
    programs.add("squeue", says=running)
    assert ask(jobs).next.startswith("saves before its time limit; no next job is queued: then")
    cancelled(jobs)
    assert ask(jobs).next == "saves a checkpoint after the current step, then ends"
    programs.add("squeue")
    end(jobs, "77_2", how="stopped")
    assert (ask(jobs).state, ask(jobs).why) == ("stopped", "the user cancelled it")
    assert ask(jobs).next.startswith("no automatic step; submit again: ")


def test_a_chain_that_has_used_its_jobs_says_so(jobs: Jobs) -> None:
    for number in range(1, 5):
        end(jobs, f"77_{number}", how="stopped")
    assert (ask(jobs).state, ask(jobs).why) == ("stopped", "the chain has used all 4 jobs")


def test_a_run_cancelled_before_any_job_began_is_cancelled(jobs: Jobs) -> None:
    cancelled(jobs)
    assert (ask(jobs).state, ask(jobs).why) == ("cancelled", "the user cancelled it")


def test_the_status_of_a_run_names_avoided_nodes_and_how_to_use_them_again(
    run_on: Run, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("squeue", "sbatch", "scontrol"):
        programs.add(name)
    jobs = run_on("juwels", "scale=mini", "cluster.nodes=2")
    submitted(jobs, "77")
    end(jobs, "77_1", how="failed", why="rank 3: device lost")
    jobs.append_events(
        ExcludedEvent(at=utc_now(), nodes=("n1",), until=avoided_until(utc_now()))
    )
    programs.add("squeue", says=queued(jobs.path, "77_2|PENDING|ReqNodeNotAvail|"))
    show = ["action=status", f"run={jobs.folder.path}"]
    words = [*show, "exclude=none"]
    found = ask(jobs)
    assert found.next.startswith("avoids n1, the first until 2")
    assert f"to readmit them: {command_line(*words)}; job 77_2 continues from 0" in found.next
    # To print the status changes nothing.
    record = jobs.record.read_text()
    assert main(show) == 0
    assert "avoids n1" in " ".join(capfd.readouterr().out.split())
    assert jobs.record.read_text() == record
    assert {call.partition(" ")[0] for call in programs.calls()} == {"squeue"}
    assert main(words) == 0
    assert capfd.readouterr().out == f"{jobs.folder.path}: its jobs may use n1 again\n"
    assert programs.calls()[-1] == "scontrol update JobId=77_2 ExcNodeList="
    assert jobs.load_chain().avoided == {}
    assert main(words) == 0
    assert capfd.readouterr().out == f"{jobs.folder.path} has no excluded nodes\n"


def test_a_run_whose_jobs_left_the_queue_before_any_began_is_lost(jobs: Jobs) -> None:
    end(jobs, "77_1", how="failed", why="long ago")
    submitted(jobs, "78", 4)
    found = ask(jobs)
    assert found.state == "lost"
    assert found.why.endswith("before they started, perhaps cancelled")
    assert len(found.jobs) == 1


def test_jobs_that_slurm_has_forgotten_are_gone(jobs: Jobs, programs: Programs) -> None:
    assert ask(jobs).queued == ()


def test_a_scheduler_that_does_not_answer_leaves_the_state_unknown(
    jobs: Jobs, programs: Programs
) -> None:
    programs.add("squeue", error="Unable to contact slurm controller\n", status=1)
    found = ask(jobs)
    assert (found.state, found.queued) == ("unknown", None)
    assert found.why == "squeue: Unable to contact slurm controller"
    assert status_of(jobs.folder.path, None).why == "the scheduler is not reachable from here"


def test_a_folder_without_a_recipe_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"run: .* is not a run folder: it has no recipe\.json"
    ):
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
        "run: a run is required\n  write run=FOLDER, or runs=[FOLDER,...]"
        in capfd.readouterr().err
    )


def test_one_run_is_shown_with_its_jobs_and_several_as_rows(
    jobs: Jobs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    end(jobs, "77_1", how="failed", why="rank 3: loss is NaN")
    assert main(["action=status", f"run={jobs.folder.path}"]) == 0
    shown = capfd.readouterr().out
    assert shown.count("rank 3: loss is NaN") == 3  # the run, what happened last, the job
    assert "from tokens" in shown
    assert main(["action=status", f"run={tmp_path}"]) == 0
    shown = capfd.readouterr().out
    assert shown.count("rank 3: loss is NaN") == 1
    assert "from tokens" not in shown


def test_of_runs_in_one_folder_each_row_has_the_run_s_own_name(
    run_on: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = run_on("juwels")
    end(jobs, "1", how="failed", why="rank 3: [/x] is no :warning:")
    folder = tmp_path / ("a_long_name_" * 8)
    folder.mkdir()
    jobs.folder.path.rename(folder / "optimizer.lr=0.0001")
    shutil.copytree(folder / "optimizer.lr=0.0001", folder / "optimizer.lr=0.0003")
    submitted(Jobs(RunFolder(folder / "optimizer.lr=0.0003")), "77", 1)
    assert main(["action=status", f"run={folder}"]) == 0
    shown = capfd.readouterr().out
    assert [shown.count(f"optimizer.lr={rate}") for rate in ("0.0001", "0.0003")] == [1, 1]
    assert main(["action=status", f"run={folder / 'optimizer.lr=0.0001'}"]) == 0
    assert "rank 3: [/x] is no :warning:" in capfd.readouterr().out


def test_what_jobs_and_the_scheduler_said_does_not_act_on_the_terminal(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    end(jobs, "77_1", how="failed", why="\x1b]0;x\a\u202e [/nope]")
    programs.add("squeue", error="\x1b[2J[/nope]", status=1)
    assert main(["action=status", f"run={jobs.folder.path}"]) == 0
    shown = capfd.readouterr().out
    assert "\u241b]0;x\u2407\ufffd [/nope]" in shown
    assert "squeue: \u241b[2J[/nope]" in shown
    assert not any(one in shown for one in ("\x1b", "\a", "\u202e"))


def test_a_running_job_that_was_cancelled_was_not_in_the_queue(
    jobs: Jobs, programs: Programs
) -> None:
    begin(jobs, "77_1")
    programs.add("scontrol", says="JobId=77 JobState=CANCELLED Reason=None")
    assert "job 77_1 was cancelled by scancel or qdel" in ask(jobs).why
