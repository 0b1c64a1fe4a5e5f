"""The end of a launch asks for another, whose beginning knows the nodes and the time."""

from pathlib import Path

import pytest

from cluster.begin import OVER, start_job
from cluster.end import RELAUNCH, end_job
from cluster.records import Jobs
from components.preflight.verdict import CHOSEN, HOSTS, read_hosts
from components.run.history import read_lines
from tests.cluster.chains import NODES, Run, fail, finish, save, task, waiting_chain
from tests.cluster.jobs import cancelled
from tests.cluster.programs import Programs

LONG = 3_600.0  # to train in
XID = "RuntimeError: NVRM: Xid 79, GPU has fallen off the bus"
SPARE = ("parallelism.data=124", "budget.global_batch_tokens=4_063_232")  # 124 of 128 nodes


@pytest.fixture
def jobs(run_on: Run, programs: Programs) -> Jobs:
    """The first job of a chain has begun on 128 nodes, of which ranks need 124."""

    def run(cluster: str) -> Jobs:
        return run_on(cluster, *SPARE, "cluster.spare_nodes=4", "watchdog.restarts=2")

    found = waiting_chain(run, programs)
    start_job(found.folder.path, task(1))
    save(found, 4_063_232)
    return found


def test_a_failed_launch_is_made_again_without_its_bad_node(
    jobs: Jobs, programs: Programs
) -> None:
    run = jobs.folder.path
    fail(jobs, 4, XID)
    (run / "stop").unlink(missing_ok=True)
    assert end_job(run, 1, LONG) == RELAUNCH
    assert start_job(run, task(1), again=True) == 0
    failed, now = jobs.load_chain().attempts
    assert (failed.job, failed.attempt, failed.bad_nodes) == ("77_1", 0, (NODES[1],))
    left = (NODES[0], *NODES[2:])
    assert (now.job, now.attempt, now.nodes) == ("77_1", 1, left)
    assert read_hosts(jobs.folder, HOSTS) == left
    assert read_hosts(jobs.folder, CHOSEN) == left[:124]
    (told,) = (one for one in read_lines(jobs.folder.events) if one["kind"] == "restart")
    assert told["cause"] == f"rank 4: {XID}"
    assert told["evidence"]["left_out"] == [NODES[1]]
    assert 0 <= told["seconds"] < 60
    # The launch after it knows a rank's node among those that are left.
    fail(jobs, 4, XID)
    assert end_job(run, 1, LONG) == RELAUNCH
    assert jobs.load_chain().attempts[-1].bad_nodes == (NODES[2],)
    assert start_job(run, task(1), again=True) == 0
    assert end_job(run, 1, LONG) == 1  # the third launch was the last


def test_a_node_that_slurm_has_taken_out_of_the_job_is_not_launched_on(
    jobs: Jobs, programs: Programs
) -> None:
    run = jobs.folder.path
    fail(jobs, 0, "RuntimeError: Connection closed by peer")
    assert end_job(run, 1, LONG) == RELAUNCH
    text = f"""case "$*" in
*"show job"*) echo "JobId=81 NodeList=jwb[0001-0127] ReqNodeList=(null)" ;;
*"jwb[0001-0127]"*) printf '%s\\n' {" ".join(NODES[:127])} ;;
*) printf '%s\\n' {" ".join(NODES)} ;;
esac"""
    programs.script("scontrol", text)
    assert start_job(run, task(1), again=True) == 0
    assert jobs.load_chain().attempts[-1].nodes == NODES[:127]


def test_a_launch_of_a_chain_that_was_cancelled_meanwhile_is_not_made(jobs: Jobs) -> None:
    run = jobs.folder.path
    fail(jobs, 0, "RuntimeError: anything")
    assert end_job(run, 1, LONG) == RELAUNCH
    cancelled(jobs)
    assert start_job(run, task(1), again=True) == OVER


def test_a_wish_to_stop_is_kept_from_one_launch_to_the_next(jobs: Jobs) -> None:
    run = jobs.folder.path
    fail(jobs, 0, "RuntimeError: anything")
    assert end_job(run, 1, LONG) == RELAUNCH
    (run / "stop").touch()  # the wall's warning comes now
    assert start_job(run, task(1), again=True) == 0
    assert (run / "stop").exists()
    fail(jobs, 0, "RuntimeError: anything")
    assert end_job(run, 1, LONG) == 1


@pytest.mark.parametrize(
    ("seconds", "message", "said"),
    [
        (None, "RuntimeError: anything", "failed: rank 0"),
        (100.0, "RuntimeError: anything", "the time limit is near: 100 s left to train"),
        (LONG, "RecipeError: data.folder: x", "a new job would fail the same way"),
    ],
)
def test_what_is_not_launched_again_ends_the_job(
    seconds: float | None,
    message: str,
    said: str,
    jobs: Jobs,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail(jobs, 0, message)
    # The launcher's status may be any, and is no wish of this program.
    assert end_job(jobs.folder.path, RELAUNCH, seconds) == 1
    assert said in capsys.readouterr().err


def test_a_run_that_has_finished_is_launched_no_more(jobs: Jobs) -> None:
    finish(jobs, "finished")
    assert end_job(jobs.folder.path, 0, LONG) == 0


def test_the_list_of_a_launch_that_has_none_is_empty(jobs: Jobs, tmp_path: Path) -> None:
    assert read_hosts(jobs.folder, "preflight/none") == ()


@pytest.mark.parametrize(
    ("goes_on", "seconds", "status"),
    [
        (True, LONG, RELAUNCH),
        (False, LONG, 0),  # the user or the wall has stopped the run
        (True, None, 0),  # a script that launches only once
        (True, 10.0, 0),  # the next job starts the phase
    ],
)
def test_ranks_that_ended_a_phase_are_launched_again_in_the_same_job(
    jobs: Jobs, goes_on: bool, seconds: float | None, status: int
) -> None:
    run = jobs.folder.path
    jobs.folder.write_json("results.json", {"status": "stopped", "goes_on": goes_on})
    assert end_job(run, 0, seconds) == status
    if status == RELAUNCH:
        assert start_job(run, task(1), again=True) == 0
        (told,) = (one for one in read_lines(jobs.folder.events) if one["kind"] == "restart")
        assert told["cause"] == "a phase of the run ended"
        assert jobs.load_chain().attempts[-1].attempt == 1
