"""The answers of OpenPBS become the jobs of one run, and of no other run."""

import json
import re
from pathlib import Path

import pytest

from cluster.chain import QueuedEvent
from cluster.pbs import Pbs
from cluster.records import utc_now
from cluster.scheduler import NotOwnError, SchedulerError, user_name
from cluster.status import status_of
from command.main import main
from tests.cluster import openpbs
from tests.cluster.jobs import began, ended, submitted
from tests.cluster.programs import Patch, Programs

AFTER = "afterany:1.s@s"
ME = user_name()


@pytest.fixture
def queue(programs: Programs, tmp_path: Path, monkeypatch: Patch) -> Path:
    """The state of the stand-in. No server runs, so no job starts."""
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("OPENPBS_FOLDER", str(state))
    openpbs.link(programs.folder, state)
    return state


def logs_of(run: str) -> Path:
    return Path("/runs", run, "jobs")


def put(run: str, *, state: str = "H", after: str | None = None, user: str = ME) -> str:
    """Lay a job of a run into the queue."""
    job = openpbs.next_job()
    tree = {"job_state": state, "Job_Owner": f"{user}@login", "comment": run}
    openpbs.write(job, tree | {"Output_Path": f"login:{logs_of(run)}/"})
    if after is not None:
        openpbs.write(after, openpbs.waited_for(openpbs.read(after), job))
    return job


def jobs_of(chain: str) -> list[str]:
    return [job.job for job in Pbs().list_jobs(chain, logs_of("a"))]


def test_jobs_of_a_run_write_into_its_folder(queue: Path) -> None:
    first = put("a", state="F")
    second = put("a", state="R", after=first)
    third = put("a", after=second)
    other = put("a", state="Q")  # of another submission, whose id nobody noted
    put("b", after=second)
    for chain in (first, second, third, ""):
        assert jobs_of(chain) == [second, third, other]
    running, waiting, _ = Pbs().list_jobs(first, logs_of("a"))
    assert (running.state, waiting.state, waiting.why) == ("running", "pending", "a")


def test_run_that_waits_for_another_is_not_a_part_of_it(queue: Path) -> None:
    first = put("a", state="R")
    other = put("b", after=first)
    second = put("a", after=first)
    assert jobs_of(first) == [first, second]
    Pbs().cancel_jobs(first, logs_of("a"), running=False)
    assert openpbs.read(second)["job_state"] == "F"
    assert openpbs.read(other)["job_state"] == "H"


def test_job_that_ends_between_two_questions_hides_no_other(queue, programs, monkeypatch):
    monkeypatch.setenv("OPENPBS_HISTORY", "off")
    gone, there = put("a", state="F"), put("a", state="R")
    once = f"[ -e {queue}/asked ] || echo {gone}; touch {queue}/asked; echo {there}"
    programs.script("qselect", once)
    assert jobs_of(there) == [there]
    programs.add("qselect", says=f"{gone}\n{there}\n")
    with pytest.raises(SchedulerError, match="jobs end faster than qstat lists them"):
        jobs_of(there)


def test_array_is_its_elements(queue: Path, programs: Programs) -> None:
    """As OpenPBS 23.06 lists it: the array itself, and those that ended before others."""
    owner = {"Job_Owner": f"{ME}@login", "Output_Path": f"login:{logs_of('a')}/"}
    letters = {"": "B", "0": "X", "1": "R", "2": "Q"}
    jobs = {f"7[{key}].s": {"job_state": one, **owner} for key, one in letters.items()}
    programs.add("qselect", says="7[].s\n")
    whole, alone = (json.dumps({"Jobs": one}) for one in (jobs, {"7[].s": jobs["7[].s"]}))
    programs.script("qstat", f"case $* in *-t*) echo '{whole}';; *) echo '{alone}';; esac")
    programs.add("qdel")
    found = Pbs().list_jobs("7[].s", logs_of("a"))
    assert [(one.job, one.state) for one in found] == [
        ("7[1].s", "running"),
        ("7[2].s", "pending"),
    ]
    Pbs().cancel_jobs("7[].s", logs_of("a"), running=False)
    assert programs.calls()[-1] == "qdel 7[2].s"
    with pytest.raises(NotOwnError):
        Pbs().list_jobs("7[].s", logs_of("b"))


def test_ended_job_is_cancelled_without_error(queue: Path, programs: Programs) -> None:
    job = put("a")
    programs.add("qdel", error=f"qdel: Job {job} has finished", status=35)
    Pbs().cancel_jobs(job, logs_of("a"), running=True)
    assert programs.calls() == [f"qdel {job}"]
    programs.add("qdel", error="qdel: Unauthorized Request", status=1)
    with pytest.raises(SchedulerError, match="qdel: qdel: Unauthorized Request"):
        Pbs().cancel_jobs(job, logs_of("a"), running=True)


def test_job_of_another_folder_is_refused(queue: Path, programs: Programs) -> None:
    job = put("b", state="R")
    programs.add("qdel")
    owner = f"user {ME} and writes into /runs/b/jobs"
    expected = f"user {ME} and folder /runs/a/jobs"
    with pytest.raises(NotOwnError, match=f"job {job} belongs to {owner}; expected {expected}"):
        Pbs().cancel_jobs(job, logs_of("a"), running=True)
    assert programs.calls() == []


def test_jobs_of_another_user_are_left_alone(queue: Path, programs: Programs) -> None:
    strange = put("a", state="R", user="walnut")
    programs.add("qdel")
    Pbs().cancel_jobs(strange, logs_of("a"), running=True)
    first = put("a", state="R")
    put("a", after=first, user="walnut")
    assert jobs_of(first) == [first]
    Pbs().cancel_jobs(first, logs_of("a"), running=False)  # nothing waits
    assert programs.calls() == []


@pytest.fixture
def no_history(queue: Path, monkeypatch: Patch) -> Path:
    """A server that forgets a job when it has ended."""
    monkeypatch.setenv("OPENPBS_HISTORY", "off")
    return queue


def test_without_history_only_the_queue_is_read(no_history: Path) -> None:
    first = put("a", state="R")
    second = put("a", after=first)
    assert jobs_of(first) == [first, second]
    openpbs.change(first, job_state="F")
    assert jobs_of(first) == [second]
    assert Pbs().find_exit_reason(first) == "gone"
    Pbs().cancel_jobs(first, logs_of("a"), running=True)  # nothing of it, and no error


def test_chain_between_two_jobs_is_found_by_the_one_queued_behind(no_history, run_on, capfd):
    jobs = run_on("aurora", "scale=mini", "cluster.nodes=2", "cluster.devices_per_node=1")
    run = jobs.folder.path
    first = put(str(run), state="R")
    second = put(str(run), after=first)
    submitted(jobs, first)
    one = began(jobs, first)
    jobs.append_events(QueuedEvent(at=utc_now(), job=first, successor=second))
    ended(jobs, one, "stopped")
    openpbs.change(first, job_state="F")
    found = status_of(run, Pbs())
    assert (found.state, [job.job for job in found.queued or ()]) == ("pending", [second])
    assert main(["action=cancel", f"run={run}"]) == 0
    assert capfd.readouterr().out == f"{second}: cancelled\n"
    assert openpbs.read(second)["job_state"] == "F"
    assert status_of(run, Pbs()).state == "stopped"


HELD = "is held (Hold_Types={}): release the job with qrls, or ask the site"


@pytest.mark.parametrize(
    ("state", "known", "why"),
    [
        ("H", {"Hold_Types": "s", "depend": AFTER}, "waits for the previous job"),
        ("H", {"Hold_Types": "us", "depend": AFTER}, HELD.format("us")),
        ("H", {"Hold_Types": "s", "comment": "held, too"}, f"held, too; {HELD.format('s')}"),
        ("H", {}, HELD.format("n")),
        ("Q", {"comment": "Not Running: none free"}, "Not Running: none free"),
        ("Q", {}, ""),
    ],
)
def test_waiting_job_has_a_reason(state, known, why, queue):
    job = put("a", state=state)
    tree = {key: value for key, value in openpbs.read(job).items() if key != "comment"}
    openpbs.write(job, tree | known)
    (found,) = Pbs().list_jobs(job, logs_of("a"))
    assert found.why == why


def test_node_of_a_job_is_named_once(queue: Path) -> None:
    job = put("a", state="R")
    hosts = [f"x1000c0s{slot}b0n0/0*208" for slot in (1, 2, 3)]
    openpbs.change(job, exec_host="+".join([*hosts, hosts[0], "login/1"]))
    (found,) = Pbs().list_jobs(job, logs_of("a"))
    assert found.nodes == "x1000c0s1b0n0,x1000c0s2b0n0,x1000c0s3b0n0,login"


@pytest.mark.parametrize(
    ("known", "fate"),
    [
        ({"job_state": "F", "Exit_status": -29}, "wall"),
        ({"job_state": "F", "Exit_status": 271}, "gone"),
        ({"job_state": "Q"}, "put back"),
    ],
)
def test_history_has_the_end_of_a_job(known: dict[str, object], fate: str, queue: Path) -> None:
    job = put("a")
    openpbs.change(job, **known)
    assert Pbs().find_exit_reason(job) == fate
    assert Pbs().find_exit_reason("404.nowhere") == "gone"


def test_waiting_job_requests_one_more_node_for_each_avoided_node(queue: Path) -> None:
    first = put("a", state="R")
    second = put("a", after=first)
    for job in (first, second):
        openpbs.change(job, Resource_List={"select": "2:ncpus=48:ngpus=4"})

    def asks(*nodes: str) -> list[str]:
        assert Pbs().exclude_nodes(first, logs_of("a"), nodes, needed=2)
        return [openpbs.read(job)["Resource_List"]["select"] for job in (first, second)]

    kept = "2:ncpus=48:ngpus=4"
    assert asks("x1") == [kept, "3:ncpus=48:ngpus=4"]
    assert asks("x1", "x2") == [kept, "4:ncpus=48:ngpus=4"]
    with pytest.raises(SchedulerError, match="violates queue and/or server resource limits"):
        asks("x1", "x2", "x3")
    assert asks() == [kept, kept]


@pytest.mark.parametrize("says", ["Jobs: none", "{}"])
def test_answer_that_is_no_json_is_refused(says: str, programs: Programs) -> None:
    programs.add("qselect", says="1.s\n")
    programs.add("qstat", says=says)
    message = f"qstat: no JSON about 1.s, got {says!r}"
    with pytest.raises(SchedulerError, match=re.escape(message)):
        Pbs().list_jobs("1.s", logs_of("a"))


def test_error_of_the_server_is_reported(programs: Programs) -> None:
    programs.add("qselect", error="qselect: cannot connect to server pbs", status=1)
    with pytest.raises(SchedulerError, match="cannot connect to server pbs"):
        Pbs().list_jobs("1.s", logs_of("a"))


def test_script_waits_for_another_job(queue: Path, programs: Programs, tmp_path: Path) -> None:
    programs.add("qsub", says="2.pbs-0001\n")
    script = tmp_path / "job.sh"
    assert Pbs().submit_script(script, after="1.pbs-0001") == "2.pbs-0001"
    assert Pbs().submit_script(script, after=None) == "2.pbs-0001"
    assert programs.calls() == [
        f"qsub -W depend=afterany:1.pbs-0001 {script}",
        f"qsub {script}",
    ]


def test_job_knows_its_nodes(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("x1\nx1\nx2\nx2\n")
    place = Pbs().read_job_place({"PBS_JOBID": "1.s", "PBS_NODEFILE": str(tmp_path / "nodes")})
    assert (place.job, place.attempt, place.nodes) == ("1.s", 0, ("x1", "x2"))
