"""Suspected nodes: avoided for a while, told, and never so many that no job could begin."""

from typing import Any

import pytest

from cluster.begin import start_job
from cluster.chain import FATES, ExcludedEvent
from cluster.decisions import avoided_until
from cluster.end import end_job
from cluster.records import Jobs, utc_now
from components.config.check import read_recipe
from components.fault_tolerance.soft_failure import NotFiniteError
from components.run.history import read_lines
from tests.cluster.chains import NODES, Run, fail, finish, save, task, waiting_chain
from tests.cluster.jobs import submitted
from tests.cluster.programs import Programs, queued


@pytest.fixture
def jobs(run_on: Run, programs: Programs) -> Jobs:
    """A chain of four on 128 nodes of JUWELS, whose scheduler answers."""
    return waiting_chain(run_on, programs)


def excluded(programs: Programs) -> list[str]:
    return [call.rpartition("=")[2] for call in programs.calls() if "ExcNodeList" in call]


def break_on(jobs: Jobs, number: int, rank: int) -> None:
    """Let a device of the node that ``rank`` is on break in job ``number``."""
    save(jobs, number)
    start_job(jobs.folder.path, task(number))
    fail(jobs, rank, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    assert end_job(jobs.folder.path, 7) == 7


def test_a_node_that_took_no_copy_is_avoided(jobs: Jobs) -> None:
    start_job(jobs.folder.path, task(1))
    (jobs.folder.path / "copies").mkdir()
    (jobs.folder.path / "copies" / "jwb0002.failed").write_text("no room\n")
    assert end_job(jobs.folder.path, 1) == 1
    (one,) = jobs.load_chain().attempts
    assert (one.why, one.bad_nodes) == ("copies: jwb0002: no room", ("jwb0002",))


def test_suspected_nodes_accumulate_over_the_jobs_of_a_chain(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, rank in enumerate((0, 4, 5), start=1):  # four ranks a node
        break_on(jobs, number, rank)
    assert excluded(programs) == ["jwb0001", "jwb0001,jwb0002", "jwb0001,jwb0002"]
    assert "the next job avoids jwb0001 jwb0002" in capfd.readouterr().err


def test_of_a_chain_whose_job_runs_only_those_that_wait_are_kept_off_a_node(
    jobs: Jobs, programs: Programs
) -> None:
    running, *waiting = (
        *("77_1|RUNNING|None|jwb0001", "77_2|PENDING|JobArrayTaskLimit|"),
        "77_3|PENDING|JobArrayTaskLimit|",
    )
    programs.add("squeue", says=queued(jobs.path, running, *waiting))
    break_on(jobs, 1, 0)
    assert programs.calls()[-1] == "scontrol update JobId=77_2,77_3 ExcNodeList=jwb0001"


def not_finite_on(jobs: Jobs, number: int, node: str) -> int:
    """Let a step be not finite in job ``number``, where the ranks of ``node`` begin it."""
    start_job(jobs.folder.path, task(number))
    ranks = {node: [4 * (int(node[-4:]) - 1)]}
    error = NotFiniteError(step=9, tokens=4_096, cause="loss not finite", ranks=ranks)
    fail(jobs, 4, f"{type(error).__name__}: {error}")
    return end_job(jobs.folder.path, 1)


def test_a_node_whose_numbers_are_not_finite_is_avoided_and_the_chain_goes_on(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not_finite_on(jobs, 1, "jwb0002") == 1
    (one,) = jobs.load_chain().attempts
    assert (one.bad_nodes, one.bad_step) == (("jwb0002",), 9)
    assert excluded(programs) == ["jwb0002"]
    assert not jobs.load_chain().over
    assert "the next job avoids jwb0002" in capfd.readouterr().err


def test_the_same_step_on_another_node_ends_the_chain_with_the_way_out(
    jobs: Jobs, programs: Programs
) -> None:
    not_finite_on(jobs, 1, "jwb0002")
    assert not_finite_on(jobs, 2, "jwb0007") == 1
    chain = jobs.load_chain()
    assert (
        "job 77_2 failed, and a new job would fail the same way: step 9, after 4,096 "
        in chain.over
    )
    assert "step 9 was not finite on jwb0002 and then on jwb0007" in chain.over
    assert "submit again with guard.non_finite.action=skip" in chain.over
    assert list(chain.avoided) == ["jwb0002"]
    assert any(call.startswith("scancel") for call in programs.calls())


def told(jobs: Jobs) -> list[tuple[str, str, dict[str, Any]]]:
    events = read_lines(jobs.folder.events)
    return [(one["kind"], one["cause"], one["evidence"]) for one in events]


def test_the_journal_is_told_how_a_job_ended_and_which_nodes_the_next_avoids(
    jobs: Jobs, programs: Programs
) -> None:
    programs.add("scontrol", says="jwb0001 jwb0002")
    run, nodes = jobs.folder.path, ["jwb0001", "jwb0002"]
    recipe = read_recipe(jobs.folder.recipe)
    save(jobs, 7 * recipe.budget.global_batch_tokens)
    start_job(run, task(1))
    fail(jobs, 4, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    end_job(run, 1)
    start_job(run, task(2))
    finish(jobs, "stopped")
    end_job(run, 0)
    why = "rank 4: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert told(jobs) == [
        ("job_end", f"failed: {why}", {"job": "77_1", "attempt": 0, "nodes": nodes}),
        ("exclusion", why, {"job": "77_1", "avoided": ["jwb0002"]}),
        ("job_end", "stopped", {"job": "77_2", "attempt": 0, "nodes": nodes}),
    ]
    (*_, last) = read_lines(jobs.folder.events)
    assert (last["step"], last["tokens"]) == (7, 7 * recipe.budget.global_batch_tokens)


def test_of_a_job_that_ended_without_a_word_the_next_one_tells(
    jobs: Jobs, programs: Programs
) -> None:
    programs.add("scontrol", says="jwb0001")
    start_job(jobs.folder.path, task(1))
    assert told(jobs) == []
    start_job(jobs.folder.path, task(1, restarts=1))
    evidence = {"job": "77_1", "attempt": 0, "nodes": ["jwb0001"]}
    assert told(jobs) == [("job_end", f"lost: {FATES['put back']}", evidence)]


def test_beyond_a_quarter_of_the_nodes_it_is_not_the_nodes(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    programs.add("scontrol", says="\n".join(NODES[:8]))
    for number, rank in enumerate((0, 4, 8), start=1):
        break_on(jobs, number, rank)
    assert excluded(programs) == ["jwb0001", "jwb0001,jwb0002"]
    assert "3 nodes are suspected, too many to avoid" in capfd.readouterr().err


def test_an_exclusion_ends_by_itself(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    at = utc_now()
    jobs.append_events(ExcludedEvent(at=at, nodes=("jwb0001",), until=at))
    jobs.append_events(ExcludedEvent(at=at, nodes=("jwb0002",), until=avoided_until(at)))
    start_job(jobs.folder.path, task(1))
    assert excluded(programs) == ["jwb0002"]
    assert list(jobs.load_chain().avoided) == ["jwb0002"]
    assert "readmitted nodes: jwb0001" in capfd.readouterr().err


def test_a_chain_does_not_block_itself_with_what_it_avoids(
    run_on: Run, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
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


def test_nodes_suspected_before_the_last_submission_are_forgotten(
    jobs: Jobs, programs: Programs
) -> None:
    break_on(jobs, 1, 0)
    submitted(jobs, "77", 4)
    break_on(jobs, 2, 4)
    assert excluded(programs) == ["jwb0001", "jwb0002"]


def test_a_scheduler_that_does_not_answer_costs_no_job_its_status(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    start_job(jobs.folder.path, task(1))
    error = "slurm_load_jobs error: Unable to contact slurm controller"
    programs.add("squeue", error=error, status=1)
    programs.add("scancel", error=error, status=1)
    fail(jobs, 0, "RuntimeError: hardware error")
    assert end_job(jobs.folder.path, 9) == 9
    said = capfd.readouterr().err
    assert f"squeue: {error}" in said
    assert "report jwb0001 to the site" in said
    assert "cannot avoid nodes" not in said  # nobody has asked it yet
    finish(jobs, "finished")
    assert end_job(jobs.folder.path, 0) == 0
    assert f"squeue: {error}" in capfd.readouterr().err


def test_neither_end_nor_suspicion_touches_a_job_of_somebody_else(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    line = "77_4|PENDING|Dependency|"
    programs.add("squeue", says=queued(jobs.path, line, user="walnut"))
    break_on(jobs, 1, 0)
    finish(jobs, "finished")
    assert end_job(jobs.folder.path, 0) == 0
    assert {call.split()[0] for call in programs.calls()} == {"scontrol", "squeue"}
    assert excluded(programs) == []
    assert capfd.readouterr().err.count("job 77_4 belongs to user walnut and writes into") == 2
