"""The begin and the end of a job: the chain continues, or ends by itself."""

import socket
from pathlib import Path

import pytest

from cluster.begin import OVER, start_job
from cluster.chain import BeganEvent, ChainState, EndedEvent
from cluster.decisions import why_over
from cluster.end import end_job
from cluster.pbs import Pbs
from cluster.records import Jobs
from cluster.slurm import Slurm
from cluster.status import status_of
from tests.cluster.jobs import NODES, Run, cancelled, fail, finish, save, submitted, task
from tests.cluster.programs import Capture, Patch, Programs

MISTAKE = "RecipeError: data.sources.eu: is missing\n  prepare it again"


def test_job_is_recorded_and_files_of_the_last_job_are_removed(jobs, capfd):
    save(jobs, 512)
    jobs.folder.stop.touch()
    finish(jobs, "stopped")
    fail(jobs, 3, "an old error")
    assert start_job(jobs.folder.path, task(1)) == 0
    assert capfd.readouterr().err.startswith(
        "job 77_1, attempt 0: from 512 tokens on jwb0001 and 127 other nodes"
    )
    assert not jobs.folder.stop.exists()
    assert not jobs.folder.results.exists()
    assert list((jobs.folder.path / "ranks").iterdir()) == []
    (job,) = jobs.load_chain().attempts
    assert (job.job, job.nodes, job.tokens_at_begin) == ("77_1", NODES, 512)


@pytest.mark.parametrize("ended", ["finished", "cancelled"])
def test_job_of_an_ended_run_has_nothing_to_do(ended: str, jobs: Jobs, capfd: Capture) -> None:
    finish(jobs, "finished") if ended == "finished" else cancelled(jobs)
    assert start_job(jobs.folder.path, task(2)) == OVER
    message = {"finished": "the run has finished", "cancelled": "the run was cancelled"}[ended]
    assert message in capfd.readouterr().err
    assert jobs.load_chain().attempts == ()


def begins(jobs: Jobs, programs: Programs, number: int, *, before: str) -> int:
    """Begin a job while Slurm reports this state of the job before."""
    names = r"\n".join(NODES)
    known = f"*hostnames*) printf '{names}';; *) echo JobState={before} Reason=None;;"
    programs.script("scontrol", f"case $* in {known} esac")
    return start_job(jobs.folder.path, task(number))


def test_two_jobs_without_progress_end_it(jobs, programs, capfd):
    run = jobs.folder.path
    save(jobs, 512)
    for number in (1, 2):
        assert start_job(run, task(number)) == 0
        fail(jobs, 3, "ValueError: loss")
        end_job(run, 1)
    assert start_job(run, task(3)) == OVER
    why = "2 jobs in a row saved nothing: 77_2: rank 3: ValueError: loss"
    assert f"{why}; the chain ends here" in capfd.readouterr().err
    assert programs.calls()[-1] == "scancel --state=PENDING 77"
    assert jobs.load_chain().over == why
    programs.add("squeue")
    found = status_of(run, Slurm())
    assert (found.state, found.why) == ("failed", why)
    assert f"python run.py resume={jobs.folder.path}" in found.next
    submitted(jobs, "78", 4)  # a person submits it again
    assert start_job(run, task(1)) == 0


def test_overtaken_requeued_job_did_not_fail(jobs: Jobs, programs: Programs) -> None:
    """A killed daemon puts 77_2 back; 77_3 starts first."""
    save(jobs, 512)
    start_job(jobs.folder.path, task(1))
    end_job(jobs.folder.path, 1)
    assert start_job(jobs.folder.path, task(2)) == 0
    assert begins(jobs, programs, 3, before="PENDING") == 0
    two = jobs.load_chain().attempts[1]
    assert (two.ended, two.why) == ("lost", "was requeued")
    assert jobs.load_chain().over == ""
    end_job(jobs.folder.path, 1)  # it fails, too: now there are two that did
    assert start_job(jobs.folder.path, task(2, restarts=1)) == OVER
    assert jobs.load_chain().over.startswith("2 jobs in a row saved nothing: 77_3: ")


@pytest.mark.parametrize(
    ("state", "why", "most"),
    [
        ("NODE_FAIL", "was lost because a node failed", 5),
        ("TIMEOUT", "was killed at its time limit before it saved a checkpoint", 2),
        ("OUT_OF_MEMORY", "was killed because a node ran out of memory", 2),
        ("NOBODY_KNOWS", "ended without a message: it was killed or its node failed", 5),
    ],
)
def test_lost_jobs_without_progress_end_the_chain_at_last(state, why, most, jobs, programs):
    found: list[int] = []
    while len(found) < 9 and OVER not in found:
        found.append(begins(jobs, programs, len(found) + 1, before=state))
    assert found == [0] * most + [OVER]
    assert {one.why for one in jobs.load_chain().attempts} == {why}
    assert why in jobs.load_chain().over


def test_users_mistake_ends_the_chain(jobs: Jobs, programs: Programs, capfd: Capture) -> None:
    programs.add("scancel", error="Unable to contact slurm controller", status=1)
    start_job(jobs.folder.path, task(1))
    fail(jobs, 5, MISTAKE)
    assert end_job(jobs.folder.path, 1) == 1
    assert "a new job would fail the same way: the chain ends here" in capfd.readouterr().err
    (job,) = jobs.load_chain().attempts
    assert (job.ended, job.bad_nodes) == ("failed", ())
    assert job.why.startswith("rank 5: RecipeError: data.sources.eu: is missing")
    assert programs.calls()[-1] == "scancel --state=PENDING 77"
    assert start_job(jobs.folder.path, task(2)) == OVER


@pytest.mark.parametrize(
    ("began_at", "saved", "over"),
    [
        ([], 0, False),
        ([0], 0, False),
        ([0, 0], 0, True),
        ([0, 0], 5, False),
        ([5, 0, 0], 0, True),
        ([0, 5], 5, False),
        ([0, 5, 5], 5, True),
    ],
)
def test_last_two_jobs_decide_if_it_is_stuck(began_at, saved, over):
    chain = ChainState()
    for number, tokens in enumerate(began_at):
        key = {"at": "", "job": str(number), "attempt": 0}
        chain = chain.apply_events(
            BeganEvent.model_validate({**key, "nodes": (), "tokens": tokens}),
            EndedEvent.model_validate({**key, "ended": "failed", "tokens": tokens}),
        )
    assert bool(why_over(chain, saved=saved, finished=False)) is over


def test_missing_launcher_ends_a_job(jobs, programs, monkeypatch):
    monkeypatch.setenv("PATH", f"{programs.folder}:/bin/none")
    (programs.folder / "srun").unlink()
    assert start_job(jobs.folder.path, task(1)) == 1
    (one,) = jobs.load_chain().attempts
    assert one.ended == "failed"
    assert one.why == "srun is not found on jwb0001; check that a site module provides it"


@pytest.mark.parametrize(("status", "launcher"), [("finished", 0), ("stopped", 143)])
def test_only_a_finished_run_takes_its_waiting_jobs_back(status, launcher, jobs, programs):
    start_job(jobs.folder.path, task(1))
    save(jobs, 1_024)
    finish(jobs, status)
    assert end_job(jobs.folder.path, launcher) == 0  # saved: whatever the launcher says
    (job,) = jobs.load_chain().attempts
    assert (job.ended, job.tokens_at_end, job.why) == (status, 1_024, "")
    took_back = programs.calls()[-1] == "scancel --state=PENDING 77"
    assert took_back == (status == "finished")
    assert any(call.startswith("scancel") for call in programs.calls()) == took_back


def test_ranks_of_a_lost_job_that_still_train_do_not_end_the_chain(jobs: Jobs) -> None:
    start_job(jobs.folder.path, task(1))
    trained = f"{jobs.folder.path} is being trained by process 7 on host n1"
    fail(jobs, 0, f"RecipeError: run: {trained}")
    assert end_job(jobs.folder.path, 1) == 1
    assert jobs.load_chain().over == ""


def test_failure_without_a_suspected_node_excludes_none(jobs: Jobs, programs: Programs) -> None:
    start_job(jobs.folder.path, task(1))
    before = programs.calls()
    assert end_job(jobs.folder.path, 0) == 1  # the ranks left no results: no success
    assert programs.calls() == before
    assert jobs.load_chain().attempts[0].why == "exit status 0, and no rank reported an error"


Pair = tuple[Jobs, dict[str, str]]


@pytest.fixture
def pbs(run_on: Run, programs: Programs, tmp_path: Path) -> Pair:
    """A run on Aurora, and the variables that PBS sets in its first job."""
    (tmp_path / "nodes").write_text("x1\nx2\n")
    seen = {"PBS_JOBID": "12.pbs-0001", "PBS_NODEFILE": str(tmp_path / "nodes")}
    programs.add("mpiexec")
    programs.add("qsub", says="13.pbs-0001\n")
    return run_on("aurora", "scale=mini", "cluster.nodes=2", "cluster.devices_per_node=1"), seen


def qsubs(programs: Programs) -> list[str]:
    return [call for call in programs.calls() if call.startswith("qsub")]


def test_pbs_job_that_is_run_again_reads_its_own_attempt_only(pbs: Pair) -> None:
    jobs, seen = pbs
    log = jobs.folder.path / "ranks" / "12.log"
    start_job(jobs.folder.path, seen)
    assert not log.exists()
    log.write_text("x2: rank 1 died from signal 9\n")
    assert end_job(jobs.folder.path, 1) == 1
    start_job(jobs.folder.path, seen)
    with log.open("a") as file:
        file.write("no trouble\n")
    assert end_job(jobs.folder.path, 1) == 1
    first, second = jobs.load_chain().attempts
    assert (first.attempt, first.bad_nodes) == (0, ("x2",))
    assert (second.attempt, second.why) == (1, "exit status 1, and no rank reported an error")


def test_each_pbs_job_but_the_last_queues_the_next(pbs: Pair, programs: Programs) -> None:
    jobs, seen = pbs
    submitted(jobs, "12.pbs-0001", 2)
    assert start_job(jobs.folder.path, seen, chained=True) == 0
    after = f"qsub -W depend=afterany:12.pbs-0001 {jobs.script}"
    assert qsubs(programs) == [after]
    assert jobs.load_chain().job_ids == ["12.pbs-0001", "13.pbs-0001"]
    start_job(jobs.folder.path, seen | {"PBS_JOBID": "13.pbs-0001"}, chained=True)
    assert qsubs(programs) == [after]


def test_status_reports_that_a_node_without_qsub_queued_nothing(
    pbs: Pair, programs: Programs, monkeypatch: Patch, capfd: Capture
) -> None:
    jobs, seen = pbs
    submitted(jobs, "12.pbs-0001", 3)
    (programs.folder / "qsub").unlink()
    monkeypatch.setenv("PATH", str(programs.folder))
    assert start_job(jobs.folder.path, seen, chained=True) == 0
    why = f"qsub is not found on {socket.gethostname()}"
    assert f"cannot queue the next job: {why}" in capfd.readouterr().err
    finish(jobs, "stopped")
    end_job(jobs.folder.path, 0)
    programs.add("qselect")
    found = status_of(jobs.folder.path, Pbs())
    assert (found.state, found.why) == ("stopped", f"could not queue the next job: {why}")
    assert f"python run.py resume={jobs.folder.path}" in found.next


def test_jobs_of_two_chains_record_their_own_ends(jobs: Jobs, monkeypatch: Patch) -> None:
    run, other = jobs.folder.path, {**task(1), "SLURM_ARRAY_JOB_ID": "78"}
    assert start_job(run, task(1)) == 0
    assert start_job(run, other) == 0
    for name, value in task(1).items():
        monkeypatch.setenv(name, value)
    finish(jobs, "stopped")
    end_job(run, 0)
    ends = {one.job: one.ended for one in jobs.load_chain().attempts}
    assert ends == {"77_1": "stopped", "78_1": None}
