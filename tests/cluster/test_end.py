"""The end of a launch: suspected nodes are avoided for a while, ranks are launched again."""

from typing import Any

import pytest

from cluster.begin import OVER, start_job
from cluster.chain import FATES, ExcludedEvent
from cluster.decisions import avoided_until
from cluster.end import RELAUNCH, end_job
from cluster.records import Jobs, utc_now
from components.config.check import read_recipe
from components.fault_tolerance.soft_failure import NotFiniteError
from components.preflight.verdict import CHOSEN, HOSTS, read_hosts
from components.run.history import read_lines
from tests.cluster.jobs import (
    NODES,
    Run,
    cancelled,
    fail,
    finish,
    save,
    submitted,
    task,
    waiting_chain,
)
from tests.cluster.programs import Capture, Programs, queued

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
XID = "RuntimeError: NVRM: Xid 79, GPU has fallen off the bus"


def excluded(programs: Programs) -> list[str]:
    return [call.rpartition("=")[2] for call in programs.calls() if "ExcNodeList" in call]


def break_on(jobs: Jobs, number: int, rank: int) -> None:
    """Let a device of the node that ``rank`` is on break in job ``number``."""
    save(jobs, number)
    start_job(jobs.folder.path, task(number))
    fail(jobs, rank, ECC)
    assert end_job(jobs.folder.path, 7) == 7


def test_node_without_a_copy_is_avoided(jobs: Jobs) -> None:
    start_job(jobs.folder.path, task(1))
    (jobs.folder.path / "copies").mkdir()
    (jobs.folder.path / "copies" / "jwb0002.failed").write_text("no room\n")
    assert end_job(jobs.folder.path, 1) == 1
    (one,) = jobs.load_chain().attempts
    assert (one.why, one.bad_nodes) == ("copies: jwb0002: no room", ("jwb0002",))


def test_suspected_nodes_accumulate(jobs: Jobs, programs: Programs, capfd: Capture) -> None:
    for number, rank in enumerate((0, 4, 5), start=1):  # four ranks a node
        break_on(jobs, number, rank)
    assert excluded(programs) == ["jwb0001", "jwb0001,jwb0002", "jwb0001,jwb0002"]
    assert "the next job avoids jwb0001 jwb0002" in capfd.readouterr().err


def test_only_waiting_jobs_are_kept_off_a_node(jobs: Jobs, programs: Programs) -> None:
    waiting = (f"77_{number}|PENDING|JobArrayTaskLimit|" for number in (2, 3))
    programs.add("squeue", says=queued(jobs.path, "77_1|RUNNING|None|jwb0001", *waiting))
    break_on(jobs, 1, 0)
    assert programs.calls()[-1] == "scontrol update JobId=77_2,77_3 ExcNodeList=jwb0001"


def not_finite_on(jobs: Jobs, number: int, node: str) -> int:
    """Let a step be not finite in job ``number``, where the ranks of ``node`` begin it."""
    start_job(jobs.folder.path, task(number))
    ranks = {node: [4 * (int(node[-4:]) - 1)]}
    error = NotFiniteError(step=9, tokens=4_096, cause="loss not finite", ranks=ranks)
    fail(jobs, 4, f"{type(error).__name__}: {error}")
    return end_job(jobs.folder.path, 1)


def test_step_bad_on_two_nodes_ends_the_chain(jobs, programs, capfd):
    assert not_finite_on(jobs, 1, "jwb0002") == 1
    (one,) = jobs.load_chain().attempts
    assert (one.bad_nodes, one.bad_step) == (("jwb0002",), 9)
    assert excluded(programs) == ["jwb0002"]
    assert not jobs.load_chain().over
    assert "the next job avoids jwb0002" in capfd.readouterr().err
    assert not_finite_on(jobs, 2, "jwb0007") == 1
    chain = jobs.load_chain()
    for text in (
        "job 77_2 failed, and a new job would fail the same way: step 9, after 4,096 ",
        "step 9 was not finite on jwb0002 and then on jwb0007, so its",
        "submit again with guard.non_finite.action=skip",
    ):
        assert text in chain.over
    assert list(chain.avoided) == ["jwb0002"]
    assert any(call.startswith("scancel") for call in programs.calls())


def events_of(jobs: Jobs) -> list[tuple[str, str, dict[str, Any]]]:
    events = read_lines(jobs.folder.events)
    return [(one["kind"], one["cause"], one["evidence"]) for one in events]


def test_event_log_has_ends_of_jobs_and_avoided_nodes(jobs: Jobs, programs: Programs) -> None:
    programs.add("scontrol", says="jwb0001 jwb0002")
    run, nodes = jobs.folder.path, ["jwb0001", "jwb0002"]
    tokens = 7 * read_recipe(jobs.folder.recipe).budget.global_batch_tokens
    save(jobs, tokens)
    start_job(run, task(1))
    fail(jobs, 4, ECC)
    end_job(run, 1)
    start_job(run, task(2))
    finish(jobs, "stopped")
    end_job(run, 0)
    assert events_of(jobs) == [
        ("job_end", f"failed: rank 4: {ECC}", {"job": "77_1", "attempt": 0, "nodes": nodes}),
        ("exclusion", f"rank 4: {ECC}", {"job": "77_1", "avoided": ["jwb0002"]}),
        ("job_end", "stopped", {"job": "77_2", "attempt": 0, "nodes": nodes}),
    ]
    (*_, last) = read_lines(jobs.folder.events)
    assert (last["step"], last["tokens"]) == (7, tokens)


def test_event_log_has_the_end_of_a_requeued_attempt(jobs: Jobs, programs: Programs) -> None:
    programs.add("scontrol", says="jwb0001")
    start_job(jobs.folder.path, task(1))
    assert events_of(jobs) == []
    start_job(jobs.folder.path, task(1, restarts=2))
    evidence = {"job": "77_1", "attempt": 0, "nodes": ["jwb0001"]}
    assert events_of(jobs) == [("job_end", f"lost: {FATES['put back']}", evidence)]
    assert [(one.job, one.attempt) for one in jobs.load_chain().attempts] == [
        *(("77_1", 0), ("77_1", 2))
    ]


def test_a_quarter_of_the_nodes_is_too_many(jobs, programs, capfd):
    programs.add("scontrol", says="\n".join(NODES[:8]))
    for number, rank in enumerate((0, 4, 8), start=1):
        break_on(jobs, number, rank)
    assert excluded(programs) == ["jwb0001", "jwb0001,jwb0002"]
    assert "3 nodes are suspected, too many to avoid" in capfd.readouterr().err


def test_exclusion_ends_by_itself(jobs: Jobs, programs: Programs, capfd: Capture) -> None:
    at = utc_now()
    jobs.append_events(ExcludedEvent(at=at, nodes=("jwb0001",), until=at))
    jobs.append_events(ExcludedEvent(at=at, nodes=("jwb0002",), until=avoided_until(at)))
    start_job(jobs.folder.path, task(1))
    assert excluded(programs) == ["jwb0002"]
    assert list(jobs.load_chain().avoided) == ["jwb0002"]
    assert "readmitted nodes: jwb0001" in capfd.readouterr().err


def test_nodes_needed_to_start_are_readmitted(run_on, programs, capfd):
    jobs = run_on("juwels", "scale=mini", "cluster.nodes=2")
    for name in ("scancel", "srun"):
        programs.add(name)
    known = "*hostnames*) printf 'n1\\nn2';; *) echo Partition=booster;;"
    programs.script("scontrol", f"case $* in {known} esac")
    programs.add("squeue", says=queued(jobs.path, "77_4|PENDING|Dependency|"))
    programs.add("sinfo", says="n1 alloc\nn2 mix\nn3 idle\nn4 drain\nn5 idle*")
    submitted(jobs, "77")
    break_on(jobs, 1, 0)
    assert list(jobs.load_chain().avoided) == ["n1"]  # n2 and n3 are left
    programs.add("sinfo", says="n1 alloc\nn2 mix\nn3 drng")
    break_on(jobs, 2, 0)
    assert list(jobs.load_chain().avoided) == []
    said = "readmitted nodes, otherwise fewer than 2 nodes would be available for a job: n1"
    assert said in capfd.readouterr().err
    assert excluded(programs) == ["n1", ""]


def test_new_submission_forgets_suspects(jobs: Jobs, programs: Programs) -> None:
    break_on(jobs, 1, 0)
    submitted(jobs, "77", 4)
    break_on(jobs, 2, 4)
    assert excluded(programs) == ["jwb0001", "jwb0002"]


def test_silent_scheduler_costs_no_status(jobs, programs, capfd):
    start_job(jobs.folder.path, task(1))
    error = "slurm_load_jobs error: Unable to contact slurm controller"
    programs.add("squeue", error=error, status=1)
    programs.add("scancel", error=error, status=1)
    fail(jobs, 0, "RuntimeError: hardware error")
    assert end_job(jobs.folder.path, 9) == 9
    stderr = capfd.readouterr().err
    assert f"squeue: {error}" in stderr
    assert "report jwb0001 to the site" in stderr
    assert "cannot avoid nodes" not in stderr  # nobody has asked it yet
    finish(jobs, "finished")
    assert end_job(jobs.folder.path, 0) == 0
    assert f"squeue: {error}" in capfd.readouterr().err


def test_jobs_of_others_are_left_alone(jobs: Jobs, programs: Programs, capfd: Capture) -> None:
    line = "77_4|PENDING|Dependency|"
    programs.add("squeue", says=queued(jobs.path, line, user="walnut"))
    break_on(jobs, 1, 0)
    finish(jobs, "finished")
    assert end_job(jobs.folder.path, 0) == 0
    assert {call.split()[0] for call in programs.calls()} == {"scontrol", "squeue"}
    assert excluded(programs) == []
    assert capfd.readouterr().err.count("job 77_4 belongs to user walnut and writes into") == 2


LONG = 3_600.0  # to train in
SPARE = ("parallelism.data=124", "budget.global_batch_tokens=4_063_232")  # 124 of 128 nodes


@pytest.fixture
def spared(run_on: Run, programs: Programs) -> Jobs:
    """The first job of a chain has begun on 128 nodes. Its ranks need 124."""

    def run(cluster: str) -> Jobs:
        return run_on(cluster, *SPARE, "cluster.spare_nodes=4", "watchdog.restarts=2")

    found = waiting_chain(run, programs)
    start_job(found.folder.path, task(1))
    save(found, 4_063_232)
    return found


def test_failed_launch_is_made_again_without_its_bad_node(spared: Jobs) -> None:
    run = spared.folder.path
    fail(spared, 4, XID)
    assert end_job(run, 1, LONG) == RELAUNCH
    assert start_job(run, task(1), again=True) == 0
    failed, now = spared.load_chain().attempts
    assert (failed.job, failed.attempt, failed.bad_nodes) == ("77_1", 0, (NODES[1],))
    left = (NODES[0], *NODES[2:])
    assert (now.job, now.attempt, now.nodes) == ("77_1", 1, left)
    assert read_hosts(spared.folder, HOSTS) == left
    assert read_hosts(spared.folder, CHOSEN) == left[:124]
    assert read_hosts(spared.folder, "preflight/none") == ()
    (restart,) = (one for one in read_lines(spared.folder.events) if one["kind"] == "restart")
    assert restart["cause"] == f"rank 4: {XID}"
    assert restart["evidence"]["left_out"] == [NODES[1]]
    assert 0 <= restart["seconds"] < 60
    # The launch after it knows a rank's node among those that are left.
    fail(spared, 4, XID)
    assert end_job(run, 1, LONG) == RELAUNCH
    assert spared.load_chain().attempts[-1].bad_nodes == (NODES[2],)
    assert start_job(run, task(1), again=True) == 0
    assert end_job(run, 1, LONG) == 1  # the third launch was the last


def test_relaunch_leaves_out_a_node_taken_by_slurm(spared: Jobs, programs: Programs) -> None:
    run = spared.folder.path
    fail(spared, 0, "RuntimeError: Connection closed by peer")
    assert end_job(run, 1, LONG) == RELAUNCH
    text = f"""case "$*" in
*"show job"*) echo "JobId=81 NodeList=jwb[0001-0127] ReqNodeList=(null)" ;;
*"jwb[0001-0127]"*) printf '%s\\n' {" ".join(NODES[:127])} ;;
*) printf '%s\\n' {" ".join(NODES)} ;;
esac"""
    programs.script("scontrol", text)
    assert start_job(run, task(1), again=True) == 0
    assert spared.load_chain().attempts[-1].nodes == NODES[:127]


def test_cancelled_chain_is_not_launched_again(spared: Jobs) -> None:
    fail(spared, 0, "RuntimeError: anything")
    assert end_job(spared.folder.path, 1, LONG) == RELAUNCH
    cancelled(spared)
    assert start_job(spared.folder.path, task(1), again=True) == OVER


def test_relaunch_keeps_the_wish_to_stop(spared: Jobs) -> None:
    run = spared.folder.path
    fail(spared, 0, "RuntimeError: anything")
    assert end_job(run, 1, LONG) == RELAUNCH
    (run / "stop").touch()  # the wall's warning comes now
    assert start_job(run, task(1), again=True) == 0
    assert (run / "stop").exists()
    fail(spared, 0, "RuntimeError: anything")
    assert end_job(run, 1, LONG) == 1


@pytest.mark.parametrize(
    ("seconds", "message", "said"),
    [
        (None, "RuntimeError: anything", "failed: rank 0"),
        (100.0, "RuntimeError: anything", "the time limit is near: 100 s left to train"),
        (LONG, "RecipeError: data.folder: x", "a new job would fail the same way"),
    ],
)
def test_failure_without_a_relaunch_ends_the_job(seconds, message, said, spared, capfd):
    fail(spared, 0, message)
    # The launcher's status may be any, and is no wish of this program.
    assert end_job(spared.folder.path, RELAUNCH, seconds) == 1
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("results", "seconds", "status"),
    [
        ({"status": "finished"}, LONG, 0),
        ({"status": "stopped", "goes_on": True}, LONG, RELAUNCH),
        ({"status": "stopped"}, LONG, 0),  # the user or the wall has stopped the run
        ({"status": "stopped", "goes_on": True}, None, 0),  # a script that launches only once
        ({"status": "stopped", "goes_on": True}, 10.0, 0),  # the next job starts the phase
    ],
)
def test_ranks_that_ended_a_phase_are_launched_again(spared, results, seconds, status):
    run = spared.folder.path
    spared.folder.write_json("results.json", results)
    assert end_job(run, 0, seconds) == status
    if status == RELAUNCH:
        assert start_job(run, task(1), again=True) == 0
        (*_, restart) = read_lines(spared.folder.events)
        assert (restart["kind"], restart["cause"]) == ("restart", "a phase of the run ended")
        assert spared.load_chain().attempts[-1].attempt == 1
