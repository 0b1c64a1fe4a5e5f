"""The status of a run, from the answers of its scheduler and the files of its jobs."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import scheduler_command
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
from tests.cluster.jobs import Run, began, cancelled, ended, submitted
from tests.cluster.programs import Capture, Patch, Programs, queued

Show = Callable[..., str]


@pytest.fixture
def jobs(run_on: Run, programs: Programs) -> Jobs:
    """A run submitted as job 77, with an empty queue."""
    programs.add("squeue")
    programs.add("sbatch")  # a host without it asks no scheduler
    jobs = run_on("juwels")
    submitted(jobs, "77", 4)
    return jobs


@pytest.fixture
def show(capfd: Capture) -> Show:
    """Return what ``action=status`` prints."""

    def act(run: Path, *words: str) -> str:
        capfd.readouterr()
        assert main(["action=status", f"run={run}", *words]) == 0
        return capfd.readouterr().out

    return act


def ask(jobs: Jobs) -> RunStatus:
    return status_of(jobs.folder.path, Slurm())


def state_and_reason(jobs: Jobs) -> tuple[str, str]:
    return ask(jobs).state, ask(jobs).why


def end(jobs: Jobs, job: str, *, how: str, why: str = "") -> None:
    ended(jobs, began(jobs, job), how, why=why)


def test_run_without_a_submission(run_on: Run) -> None:
    found = status_of(run_on("juwels").folder.path, Slurm())
    assert (found.state, found.chain, found.queued) == ("not submitted", None, None)


def test_status_of_a_local_run_is_its_lock_and_its_files(run_on: Run, show: Show) -> None:
    folder = run_on("local").folder

    def said() -> tuple[str, str]:
        found = status_of(folder.path, None)
        assert (found.chain, found.jobs) == (None, ())
        return found.state, found.why

    go_on = f"continue: {command_line(f'resume={folder.path}')}"
    assert said() == ("killed", "the run ended before its first step")
    assert status_of(folder.path, None).next == go_on
    shown = show(folder.path)
    assert "killed" in shown
    assert "attempt" not in shown
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


def test_run_with_a_closed_lock_is_unknown(run_on: Run, monkeypatch: Patch) -> None:
    def closed(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("cluster.status.writer_of", closed)  # root may open everything
    found = status_of(run_on("local").folder.path, None)
    why = "cannot check if the run is active: cannot open writer.lock: Permission denied"
    assert (found.state, found.why) == ("unknown", why)


def test_run_with_a_running_job(jobs: Jobs, programs: Programs) -> None:
    lines = ("77_2|RUNNING|None|jwb[0001-0128]", "77_3|PENDING|JobArrayTaskLimit|")
    programs.add("squeue", says=queued(jobs.path, *lines))
    found = ask(jobs)
    assert (found.state, found.why) == ("running", "job 77_2 on jwb[0001-0128]")
    states = [(job.job, job.state) for job in found.queued or ()]
    assert states == [("77_2", "running"), ("77_3", "pending")]
    assert programs.calls() == [
        f"squeue --noheader --array --user={user_name()} "
        "--Format=JobArrayID:|,State:|,Reason:|,NodeList:|,UserName:|,STDOUT:|"
    ]


def test_status_has_a_state_and_a_reason(jobs: Jobs, programs: Programs) -> None:
    assert ask(jobs).queued == ()  # Slurm has forgotten the jobs
    assert state_and_reason(jobs) == (
        *("lost", "all jobs left the queue before they started, perhaps cancelled"),
    )
    programs.add("squeue", says=queued(jobs.path, "77_1|PENDING|AssocGrpBillingMinutes|"))
    assert state_and_reason(jobs) == ("pending", "AssocGrpBillingMinutes")
    programs.add("squeue", error="Unable to contact slurm controller\n", status=1)
    assert state_and_reason(jobs) == ("unknown", "squeue: Unable to contact slurm controller")
    assert ask(jobs).queued is None
    unreachable = status_of(jobs.folder.path, None)
    assert unreachable.why == "the scheduler is not reachable from here"
    programs.add("squeue")
    end(jobs, "77_1", how="stopped")
    assert state_and_reason(jobs) == ("stopped", "")
    end(jobs, "77_2", how="failed", why="rank 3: loss is NaN")
    assert state_and_reason(jobs) == ("failed", "rank 3: loss is NaN")
    for number in (3, 4):
        end(jobs, f"77_{number}", how="stopped")
    assert state_and_reason(jobs) == ("stopped", "the chain has used all 4 jobs")
    submitted(jobs, "78", 4)
    assert state_and_reason(jobs)[0] == "lost"
    assert len(ask(jobs).jobs) == 4
    cancelled(jobs)
    assert state_and_reason(jobs) == ("cancelled", "the user cancelled it")
    jobs.folder.write_json("results.json", {"status": "finished"})
    assert state_and_reason(jobs) == ("finished", "")


def test_run_is_lost_if_its_job_ended_without_a_record(jobs, programs, show):
    began(jobs, "77_1")
    gone = "job 77_1 ended without a message: it was killed or its node failed"
    log = "see jobs/77_1.log"
    programs.add("scontrol", error="slurm_load_jobs error: Invalid job id", status=1)
    assert state_and_reason(jobs) == ("lost", f"{gone}: {log}")
    assert f"python run.py resume={jobs.folder.path}" in ask(jobs).next
    programs.add("scontrol", says="JobId=77 JobState=CANCELLED Reason=None")
    assert "job 77_1 was cancelled by scancel or qdel" in ask(jobs).why
    programs.add("scontrol", says="JobId=77 JobState=TIMEOUT Reason=TimeLimit")
    killed = "job 77_1 was killed at its time limit before it saved a checkpoint"
    assert ask(jobs).why == f"{killed}: {log}"
    shown = show(jobs.folder.path)
    assert "not ended" not in shown
    assert "killed at its time limit" in shown
    programs.add("squeue", says=queued(jobs.path, "77_1|RUNNING|None|n1"))
    assert show(jobs.folder.path).count("running") == 2  # the run and its job, listed once


def test_status_has_the_last_and_the_next_event(jobs, programs, show):
    end(jobs, "77_1", how="failed", why="rank 3: loss is NaN")
    programs.add("squeue", says=queued(jobs.path, "77_2|PENDING|Priority|"))
    found = ask(jobs)
    assert found.last.endswith(" UTC: job 77_1 failed at 0 tokens: rank 3: loss is NaN")
    assert found.next == "job 77_2 continues from 0 tokens when it starts"
    shown = " ".join(show(jobs.folder.path).split())
    assert "next job 77_2 continues from 0 tokens when it starts" in shown
    began(jobs, "77_2")
    running = queued(jobs.path, "77_2|RUNNING|None|n1")
    programs.add("squeue", says=running + queued(jobs.path, "77_3|PENDING|Dependency|"))
    assert ask(jobs).next == "saves before its time limit; then job 77_3 continues"
    programs.add("squeue", says=running)
    assert ask(jobs).next.startswith("saves before its time limit; no next job is queued: then")
    cancelled(jobs)
    assert ask(jobs).next == "saves a checkpoint after the current step, then ends"
    programs.add("squeue")
    end(jobs, "77_2", how="stopped")
    assert state_and_reason(jobs) == ("stopped", "the user cancelled it")
    assert ask(jobs).next.startswith("no automatic step; submit again: ")


def test_status_names_avoided_nodes_and_remedy(run_on, programs, show):
    for name in ("squeue", "sbatch", "scontrol"):
        programs.add(name)
    jobs = run_on("juwels", "scale=mini", "cluster.nodes=2")
    run = jobs.folder.path
    submitted(jobs, "77")
    end(jobs, "77_1", how="failed", why="rank 3: device lost")
    until = avoided_until(utc_now())
    jobs.append_events(ExcludedEvent(at=utc_now(), nodes=("n1",), until=until))
    programs.add("squeue", says=queued(jobs.path, "77_2|PENDING|ReqNodeNotAvail|"))
    readmit = command_line("action=status", f"run={run}", "exclude=none")
    found = ask(jobs)
    assert found.next.startswith("avoids n1, the first until 2")
    assert f"to readmit them: {readmit}; job 77_2 continues from 0" in found.next
    # To print the status changes nothing.
    record = jobs.record.read_text()
    assert "avoids n1" in " ".join(show(run).split())
    assert jobs.record.read_text() == record
    assert {call.partition(" ")[0] for call in programs.calls()} == {"squeue"}
    assert show(run, "exclude=none") == f"{run}: its jobs may use n1 again\n"
    assert programs.calls()[-1] == "scontrol update JobId=77_2 ExcNodeList="
    assert jobs.load_chain().avoided == {}
    assert show(run, "exclude=none") == f"{run} has no excluded nodes\n"


def test_folder_without_a_recipe_is_no_run(tmp_path: Path) -> None:
    message = r"run: .* is not a run folder: it has no recipe\.json"
    with pytest.raises(RecipeError, match=message):
        status_of(tmp_path, None)


def test_runs_are_named_by_themselves_or_by_their_folder(jobs: Jobs, tmp_path: Path) -> None:
    run = jobs.folder.path
    assert named_runs(read_point([f"run={run}"])) == [run]
    assert named_runs(read_point([f"run={tmp_path}"])) == [run]
    assert named_runs(read_point([f"runs=[{run},{tmp_path}]"])) == [run, run]


def test_one_run_has_its_jobs_several_have_rows(jobs: Jobs, tmp_path: Path, show: Show) -> None:
    end(jobs, "77_1", how="failed", why="rank 3: loss is NaN")
    shown = show(jobs.folder.path)
    assert shown.count("rank 3: loss is NaN") == 3  # the run, what happened last, the job
    assert "from tokens" in shown
    shown = show(tmp_path)
    assert shown.count("rank 3: loss is NaN") == 1
    assert "from tokens" not in shown
    folder = tmp_path / ("a_long_name_" * 8)
    folder.mkdir()
    jobs.folder.path.rename(folder / "optimizer.lr=0.0001")
    shutil.copytree(folder / "optimizer.lr=0.0001", folder / "optimizer.lr=0.0003")
    submitted(Jobs(RunFolder(folder / "optimizer.lr=0.0003")), "77", 1)
    shown = show(folder)
    assert [shown.count(f"optimizer.lr={rate}") for rate in ("0.0001", "0.0003")] == [1, 1]


def test_foreign_text_does_not_act_on_terminals(jobs, programs, show):
    end(jobs, "77_1", how="failed", why="\x1b]0;x\a\u202e [/nope] is no :warning:")
    programs.add("squeue", error="\x1b[2J[/nope]", status=1)
    shown = show(jobs.folder.path)
    assert "\u241b]0;x\u2407\ufffd [/nope] is no :warning:" in " ".join(shown.split())
    assert "squeue: \u241b[2J[/nope]" in shown
    assert not any(one in shown for one in ("\x1b", "\a", "\u202e"))


@pytest.mark.parametrize("silent", ["squeue", "scontrol"])
def test_silent_scheduler_is_waited_for_once_for_all_runs(
    silent: str, run_on: Run, programs: Programs, tmp_path: Path, monkeypatch: Patch, show: Show
) -> None:
    jobs = run_on("juwels")
    submitted(jobs, "77", 1)
    began(jobs, "77")
    for number in range(1, 5):
        shutil.copytree(jobs.folder.path, tmp_path / "runs" / str(number))
    for name in ("sbatch", "squeue", "scontrol"):
        programs.add(name)
    monkeypatch.setattr(scheduler_command, "ANSWERS_WITHIN_SECONDS", 0.5)
    programs.script(silent, "exec sleep 20")
    show(tmp_path / "runs")
    asked = ["squeue"] if silent == "squeue" else ["squeue", "scontrol"]
    assert [call.split()[0] for call in programs.calls()] == asked
