"""What a job does before its ranks start and after: the chain goes on, or ends by itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.begin import OVER, begin, stuck
from cluster.end import end
from cluster.records import WITHOUT_A_WORD, Jobs, chain_of, now
from components.config.schema.recipe import read_recipe
from components.run.history import read_lines
from components.run.records import JobLifeRecord
from tests.cluster.programs import Programs, queued

NODES = tuple(f"jwb{number:04d}" for number in range(1, 129))
Run = Callable[..., Jobs]


def task(number: int, *, restarts: int = 0) -> dict[str, str]:
    """What Slurm tells a task of the array 77."""
    return {
        "SLURM_JOB_ID": str(80 + number),
        "SLURM_ARRAY_JOB_ID": "77",
        "SLURM_ARRAY_TASK_ID": str(number),
        "SLURM_JOB_NODELIST": "jwb[0001-0128]",
        "SLURM_RESTART_COUNT": str(restarts),
    }


@pytest.fixture
def jobs(run_on: Run, programs: Programs) -> Jobs:
    """A chain of four on 128 nodes of JUWELS, whose scheduler answers."""
    programs.add("scontrol", says="\n".join(NODES))
    programs.add("scancel")
    jobs = run_on("juwels")
    programs.add("squeue", says=queued(jobs.path, "77_4|PENDING|Dependency|"))
    jobs.add_submission("77", at=now(), words=[], jobs=4)
    return jobs


def save(jobs: Jobs, tokens: int) -> None:
    folder = jobs.folder.checkpoints / f"tokens-{tokens:015d}"
    folder.mkdir()
    (folder / "progress.json").write_text(json.dumps({"tokens": tokens}))


def finish(jobs: Jobs, status: str) -> None:
    jobs.folder.write_json("results.json", {"status": status})


def fail(jobs: Jobs, rank: int, message: str) -> None:
    (jobs.folder.path / "ranks" / f"error-{rank}.json").write_text(
        json.dumps({"message": message})
    )


def record(tokens: int) -> JobLifeRecord:
    return JobLifeRecord(job="1", attempt=0, nodes=(), began_at="", tokens_at_begin=tokens)


def test_a_job_that_begins_is_noted_and_sweeps_away_what_the_one_before_left(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    save(jobs, 512)
    jobs.folder.stop.touch()
    finish(jobs, "stopped")
    fail(jobs, 3, "an old error")
    assert begin(jobs.folder.path, task(1)) == 0
    assert capfd.readouterr().err.startswith("job 77_1, attempt 0: from 512 tokens on jwb0001 ")
    assert not jobs.folder.stop.exists()
    assert not jobs.folder.results.exists()
    assert list((jobs.folder.path / "ranks").iterdir()) == []
    (job,) = jobs.all()
    assert (job.job, job.nodes, job.tokens_at_begin) == ("77_1", NODES, 512)


def test_a_requeued_job_is_another_attempt(jobs: Jobs) -> None:
    begin(jobs.folder.path, task(1))
    begin(jobs.folder.path, task(1, restarts=1))
    assert [(job.job, job.attempt) for job in jobs.all()] == [("77_1", 0), ("77_1", 1)]


def test_a_job_of_a_finished_run_has_nothing_to_do(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    finish(jobs, "finished")
    assert begin(jobs.folder.path, task(2)) == OVER
    assert "the run has finished: nothing is left for this job" in capfd.readouterr().err
    assert jobs.all() == []


def test_a_job_of_a_cancelled_run_ends_though_it_was_about_to_begin(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs.cancelled.touch()
    assert begin(jobs.folder.path, task(1)) == OVER
    assert "the run was cancelled: this job ends" in capfd.readouterr().err
    assert jobs.all() == []


def test_two_jobs_that_saved_nothing_new_end_the_chain(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    run = jobs.folder.path
    save(jobs, 512)
    assert [begin(run, task(1)), begin(run, task(2))] == [0, 0]
    assert begin(run, task(3)) == OVER
    assert "2 jobs in a row saved nothing new: the chain ends here" in capfd.readouterr().err
    assert programs.calls()[-1] == "scancel --state=PENDING 77"


def test_a_job_that_saved_lets_the_chain_go_on(jobs: Jobs) -> None:
    run = jobs.folder.path
    begin(run, task(1))
    begin(run, task(2))
    save(jobs, 512)
    assert begin(run, task(3)) == 0


def test_submitted_again_a_stuck_run_has_two_more_jobs(jobs: Jobs) -> None:
    run = jobs.folder.path
    begin(run, task(1))
    begin(run, task(2))
    jobs.add_submission("78", at=now(), words=[], jobs=4)
    assert begin(run, task(1)) == 0


@pytest.mark.parametrize(
    ("began_at", "saved", "expected"),
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
def test_stuck_means_that_the_last_two_began_where_the_run_still_is(
    began_at: list[int], saved: int, expected: bool
) -> None:
    assert stuck([record(tokens) for tokens in began_at], saved) is expected


def test_the_last_job_of_a_chain_is_marked_so_that_it_queues_no_other(jobs: Jobs) -> None:
    marks = []
    for number in range(1, 5):
        save(jobs, number)
        begin(jobs.folder.path, task(number))
        marks.append(jobs.last.exists())
    assert marks == [False, False, False, True]
    jobs.add_submission("78", at=now(), words=[], jobs=2)
    begin(jobs.folder.path, task(5))
    assert not jobs.last.exists()


def test_a_finished_run_takes_the_waiting_jobs_back(jobs: Jobs, programs: Programs) -> None:
    begin(jobs.folder.path, task(1))
    save(jobs, 1_024)
    finish(jobs, "finished")
    assert end(jobs.folder.path, 0) == 0
    (job,) = jobs.all()
    assert (job.ended, job.tokens_at_end, job.why) == ("finished", 1_024, "")
    assert programs.calls()[-1] == "scancel --state=PENDING 77"


def test_a_stopped_run_leaves_the_next_job_in_the_queue(jobs: Jobs, programs: Programs) -> None:
    begin(jobs.folder.path, task(1))
    save(jobs, 1_024)
    finish(jobs, "stopped")
    assert end(jobs.folder.path, 143) == 0  # saved in time: whatever the launcher says
    assert jobs.all()[0].ended == "stopped"
    assert not any(call.startswith("scancel") for call in programs.calls())


def test_a_mistake_of_the_recipe_ends_the_chain_and_says_so(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    begin(jobs.folder.path, task(1))
    fail(jobs, 5, "RecipeError: data.sources.eu: is missing\n  prepare it again")
    assert end(jobs.folder.path, 1) == 1
    assert "no other job would mend this: the chain ends here" in capfd.readouterr().err
    (job,) = jobs.all()
    assert (job.ended, job.bad_nodes) == ("failed", ())
    assert job.why.startswith("rank 5: RecipeError: data.sources.eu: is missing")
    assert programs.calls()[-1] == "scancel --state=PENDING 77"


def test_a_failure_without_a_suspect_leaves_chain_and_nodes_alone(
    jobs: Jobs, programs: Programs
) -> None:
    begin(jobs.folder.path, task(1))
    before = programs.calls()
    assert end(jobs.folder.path, 0) == 1  # the ranks left no results: no success
    assert programs.calls() == before
    assert jobs.all()[0].why == "exit status 0, and no rank said why"


def excluded(programs: Programs) -> list[str]:
    return [call.rpartition("=")[2] for call in programs.calls() if "ExcNodeList" in call]


def break_on(jobs: Jobs, number: int, rank: int) -> None:
    """Let a device of the node that ``rank`` is on break in job ``number``."""
    save(jobs, number)
    begin(jobs.folder.path, task(number))
    fail(jobs, rank, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    assert end(jobs.folder.path, 7) == 7


def test_a_node_that_took_no_copy_is_avoided(jobs: Jobs) -> None:
    begin(jobs.folder.path, task(1))
    (jobs.folder.path / "copies").mkdir()
    (jobs.folder.path / "copies" / "jwb0002.failed").write_text("no room\n")
    assert end(jobs.folder.path, 1) == 1
    (one,) = jobs.all()
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


def told(jobs: Jobs) -> list[tuple[str, str, dict[str, Any]]]:
    events = read_lines(jobs.folder.journal)
    return [(one["kind"], one["cause"], one["evidence"]) for one in events]


def test_the_journal_is_told_how_a_job_ended_and_which_nodes_the_next_avoids(
    jobs: Jobs, programs: Programs
) -> None:
    programs.add("scontrol", says="jwb0001 jwb0002")
    run, nodes = jobs.folder.path, ["jwb0001", "jwb0002"]
    recipe = read_recipe(jobs.folder.recipe)
    save(jobs, 7 * recipe.budget.global_batch_tokens)
    begin(run, task(1))
    fail(jobs, 4, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    end(run, 1)
    begin(run, task(2))
    finish(jobs, "stopped")
    end(run, 0)
    why = "rank 4: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert told(jobs) == [
        ("job_end", f"failed: {why}", {"job": "77_1", "attempt": 0, "nodes": nodes}),
        ("exclusion", why, {"job": "77_1", "avoided": ["jwb0002"]}),
        ("job_end", "stopped", {"job": "77_2", "attempt": 0, "nodes": nodes}),
    ]
    (*_, last) = read_lines(jobs.folder.journal)
    assert (last["step"], last["tokens"]) == (7, 7 * recipe.budget.global_batch_tokens)


def test_of_a_job_that_ended_without_a_word_the_next_one_tells(
    jobs: Jobs, programs: Programs
) -> None:
    programs.add("scontrol", says="jwb0001")
    begin(jobs.folder.path, task(1))
    assert told(jobs) == []
    begin(jobs.folder.path, task(1, restarts=1))
    evidence = {"job": "77_1", "attempt": 0, "nodes": ["jwb0001"]}
    assert told(jobs) == [("job_end", WITHOUT_A_WORD, evidence)]


def test_beyond_a_quarter_of_the_nodes_it_is_not_the_nodes(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    programs.add("scontrol", says="\n".join(NODES[:8]))
    for number, rank in enumerate((0, 4, 8), start=1):
        break_on(jobs, number, rank)
    assert excluded(programs) == ["jwb0001", "jwb0001,jwb0002"]
    assert "3 nodes are suspected by now, so it may be none of them" in capfd.readouterr().err


def test_nodes_suspected_before_the_last_submission_are_forgotten(
    jobs: Jobs, programs: Programs
) -> None:
    break_on(jobs, 1, 0)
    jobs.add_submission("77", at=now(), words=[], jobs=4)
    break_on(jobs, 2, 4)
    assert excluded(programs) == ["jwb0001", "jwb0002"]


def test_a_scheduler_that_does_not_answer_costs_no_job_its_status(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    begin(jobs.folder.path, task(1))
    error = "slurm_load_jobs error: Unable to contact slurm controller"
    programs.add("squeue", error=error, status=1)
    programs.add("scancel", error=error, status=1)
    fail(jobs, 0, "RuntimeError: hardware error")
    assert end(jobs.folder.path, 9) == 9
    said = capfd.readouterr().err
    assert f"squeue: {error}" in said
    assert "tell the site of jwb0001" in said
    assert "cannot avoid nodes" not in said  # nobody has asked it yet
    finish(jobs, "finished")
    assert end(jobs.folder.path, 0) == 0
    assert f"squeue: {error}" in capfd.readouterr().err


def test_neither_end_nor_suspicion_touches_a_job_of_somebody_else(
    jobs: Jobs, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    line = "77_4|PENDING|Dependency|"
    programs.add("squeue", says=queued(jobs.path, line, user="walnut"))
    break_on(jobs, 1, 0)
    finish(jobs, "finished")
    assert end(jobs.folder.path, 0) == 0
    assert {call.split()[0] for call in programs.calls()} == {"scontrol", "squeue"}
    assert excluded(programs) == []
    assert capfd.readouterr().err.count("job 77_4 is of user walnut and writes into") == 2


@pytest.fixture
def pbs(run_on: Run, tmp_path: Path) -> tuple[Jobs, dict[str, str]]:
    """A run on Aurora, and what PBS tells its first job."""
    (tmp_path / "nodes").write_text("x1\nx2\n")
    seen = {"PBS_JOBID": "12.pbs-0001", "PBS_NODEFILE": str(tmp_path / "nodes")}
    return run_on("aurora", "scale=mini", "cluster.nodes=2", "cluster.devices_per_node=1"), seen


def test_on_pbs_a_job_that_is_run_again_does_not_read_the_attempt_before(
    pbs: tuple[Jobs, dict[str, str]],
) -> None:
    jobs, seen = pbs
    log = jobs.folder.path / "ranks" / "12.log"
    begin(jobs.folder.path, seen)
    assert not log.exists()
    log.write_text("x2: rank 1 died from signal 9\n")
    assert end(jobs.folder.path, 1) == 1
    begin(jobs.folder.path, seen)
    with log.open("a") as file:
        file.write("no trouble\n")
    assert end(jobs.folder.path, 1) == 1
    first, second = jobs.all()
    assert (first.attempt, first.bad_nodes) == (0, ("x2",))
    assert (second.attempt, second.why) == (1, "exit status 1, and no rank said why")


def test_who_submits_by_hand_sets_no_limit(pbs: tuple[Jobs, dict[str, str]]) -> None:
    jobs, seen = pbs
    jobs.last.touch()
    begin(jobs.folder.path, seen)
    assert not jobs.last.exists()


def test_a_chain_is_an_array_or_a_job() -> None:
    assert [chain_of(job) for job in ("77_12", "77", "12.pbs-0001")] == [
        *("77", "77", "12.pbs-0001")
    ]
