"""What is made of what OpenPBS says: one run's jobs, and no other's."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.batch_systems import Pbs
from cluster.records import Jobs, now, status_of
from cluster.scheduler import NotOwnError, SchedulerError, user_name
from tests.cluster import openpbs
from tests.cluster.programs import Programs

SCRIPT = """#!/bin/bash
#PBS -N sleeper
#PBS -l select=1
#PBS -l walltime=00:10:00
#PBS -o {folder}/

sleep 600
"""


@pytest.fixture
def queue(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in's state; no job of it is started, for nobody serves them."""
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("OPENPBS_FOLDER", str(state))
    openpbs.link(programs.folder, state)
    return state


def logs_of(run: str) -> Path:
    return Path("/runs", run, "jobs")


def put(
    run: str, *, state: str = "H", after: str | None = None, user: str = user_name()
) -> str:
    """Lay a job of a run into the queue."""
    job = openpbs.next_job()
    tree = {"job_state": state, "Job_Owner": f"{user}@login", "comment": run}
    tree |= {"Output_Path": f"login:{logs_of(run)}/"}
    openpbs.write(job, tree)
    if after is not None:
        openpbs.write(after, openpbs.waited_for(openpbs.read(after), job))
    return job


def jobs_of(chain: str) -> list[str]:
    return [job.job for job in Pbs().states(chain, logs_of("a"))]


@pytest.mark.long
def test_a_chain_is_followed_from_any_of_its_jobs(queue: Path) -> None:
    first = put("a", state="F")
    second = put("a", state="R", after=first)
    third = put("a", after=second)
    assert jobs_of(first) == jobs_of(second) == [second, third]
    assert jobs_of(third) == [third]
    running, waiting = Pbs().states(first, logs_of("a"))
    assert (running.state, waiting.state, waiting.why) == ("running", "pending", "a")


def test_a_run_that_waits_for_this_one_is_not_taken_for_a_part_of_it(queue: Path) -> None:
    first = put("a", state="R")
    other = put("b", after=first)
    second = put("a", after=first)
    assert jobs_of(first) == [first, second]
    Pbs().cancel(first, logs_of("a"), running=False)
    assert openpbs.read(second)["job_state"] == "F"
    assert openpbs.read(other)["job_state"] == "H"


def test_jobs_that_wait_for_each_other_are_each_asked_about_once(queue: Path) -> None:
    first = put("a", state="R")
    second = put("a", after=first)
    openpbs.write(second, openpbs.waited_for(openpbs.read(second), first))
    assert jobs_of(first) == [first, second]


def test_a_chain_whose_first_job_is_forgotten_is_found_by_what_its_jobs_left(
    queue: Path, run_on: Callable[..., Jobs]
) -> None:
    jobs = run_on("aurora", "scale=mini", "cluster.nodes=2", "cluster.devices_per_node=1")
    jobs.add_submission("900.pbs-0001", at=now(), words=[], jobs=9)
    assert status_of(jobs.folder.path, Pbs()).state == "lost"
    job = put(str(jobs.folder.path), state="R")
    record = jobs.path / f"{job}-0.json"
    began = {"job": job, "attempt": 0, "nodes": ["x1"], "began_at": now()}
    record.write_text(json.dumps(began | {"tokens_at_begin": 0, "bad_nodes": []}))
    assert status_of(jobs.folder.path, Pbs()).state == "running"


def test_to_cancel_what_has_ended_meanwhile_is_no_error(
    queue: Path, programs: Programs
) -> None:
    job = put("a")
    programs.add("qdel", error=f"qdel: Job {job} has finished", status=35)
    Pbs().cancel(job, logs_of("a"), running=True)
    assert programs.calls() == [f"qdel {job}"]
    programs.add("qdel", error="qdel: Unauthorized Request", status=1)
    with pytest.raises(SchedulerError, match="qdel: qdel: Unauthorized Request"):
        Pbs().cancel(job, logs_of("a"), running=True)


@pytest.mark.parametrize(("run", "user"), [("a", "walnut"), ("b", user_name())])
def test_a_job_of_another_user_or_folder_is_refused_with_both_named(
    run: str, user: str, queue: Path, programs: Programs
) -> None:
    job = put(run, state="R", user=user)
    programs.add("qdel")
    with pytest.raises(
        NotOwnError,
        match=rf"job {job} is of user {user} and writes into /runs/{run}/jobs; "
        rf"this is user {user_name()}, and what is asked for writes into /runs/a/jobs",
    ):
        Pbs().cancel(job, logs_of("a"), running=True)
    assert programs.calls() == []


def test_a_strangers_job_that_waits_for_this_run_is_no_part_of_it(queue: Path) -> None:
    first = put("a", state="R")
    put("a", after=first, user="walnut")
    assert jobs_of(first) == [first]


def test_nothing_is_cancelled_where_nothing_waits(queue: Path, programs: Programs) -> None:
    programs.add("qdel")
    Pbs().cancel(put("a", state="R"), logs_of("a"), running=False)
    assert programs.calls() == []


def test_where_a_site_keeps_no_history_the_queue_alone_is_asked(
    programs: Programs, tmp_path: Path
) -> None:
    told = {"Job_Owner": f"{user_name()}@h", "Output_Path": f"h:{logs_of('a')}/"}
    tree = {"Jobs": {"1.s": {"job_state": "Q", **told}}}
    answer = f"cat <<'END'\n{json.dumps(tree)}\nEND"
    refusal = "echo 'qstat: PBS is not configured to maintain job history' >&2; exit 1"
    file = programs.folder / "qstat"
    file.write_text(f'#!/bin/sh\nif [ "$1" = -x ]; then {refusal}; fi\n{answer}\n')
    file.chmod(0o755)
    assert jobs_of("1.s") == ["1.s"]


@pytest.mark.parametrize("says", ["Jobs: none", "{}"])
def test_an_answer_that_is_no_json_is_the_schedulers_failure(
    says: str, programs: Programs
) -> None:
    programs.add("qstat", says=says)
    with pytest.raises(
        SchedulerError, match=rf"qstat: no JSON about 1\.s: '{re.escape(says)}'"
    ):
        Pbs().states("1.s", logs_of("a"))


def test_another_trouble_of_qstat_is_told(programs: Programs) -> None:
    programs.add("qstat", error="qstat: cannot connect to server pbs", status=1)
    with pytest.raises(SchedulerError, match="cannot connect to server pbs"):
        Pbs().states("1.s", logs_of("a"))


def test_a_script_is_handed_over_with_what_it_waits_for(
    queue: Path, programs: Programs, tmp_path: Path
) -> None:
    programs.add("qsub", says="2.pbs-0001\n")
    script = tmp_path / "job.sh"
    assert Pbs().submit(script, after="1.pbs-0001") == "2.pbs-0001"
    assert Pbs().submit(script, after=None) == "2.pbs-0001"
    assert programs.calls() == [
        f"qsub -W depend=afterany:1.pbs-0001 {script}",
        f"qsub {script}",
    ]


def test_nodes_cannot_be_avoided_and_a_job_knows_its_own(tmp_path: Path) -> None:
    assert Pbs().exclude("1.s", Path("/runs"), ["x1"]) is False
    (tmp_path / "nodes").write_text("x1\nx1\nx2\nx2\n")
    place = Pbs().place({"PBS_JOBID": "1.s", "PBS_NODEFILE": str(tmp_path / "nodes")})
    assert (place.job, place.attempt, place.nodes) == ("1.s", 0, ("x1", "x2"))


def test_with_a_held_job_those_go_that_wait_for_it(queue: Path) -> None:
    """So does OpenPBS: why a chain is taken back from its end."""
    first = put("a")
    second = put("a", after=first)
    assert openpbs.qdel([first]) == 0
    assert openpbs.read(second)["job_state"] == "F"
    assert openpbs.qdel([second]) == 35


def test_the_stand_in_refuses_a_directive_that_no_manual_has(
    queue: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT.format(folder=tmp_path).replace("#PBS -N", "#PBS -Q"))
    assert openpbs.qsub([str(script)]) == 2
    assert "no manual has -Q" in capfd.readouterr().err
    assert list(queue.glob("*.json")) == []
