"""What jobs leave: in the order in which they began, whole or not at all."""

import json
from pathlib import Path

import pytest

from cluster.records import Jobs, now, saved_tokens
from cluster.scheduler import JobPlace
from components.run.folder import RunFolder


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "checkpoints").mkdir()
    return Jobs(RunFolder(tmp_path))


def place(job: str, attempt: int = 0) -> JobPlace:
    return JobPlace(job=job, attempt=attempt, nodes=("n1", "n2"))


def submit(jobs: Jobs, chain: str) -> None:
    jobs.add_submission(chain, at=now(), words=["recipe=teuken7b"], jobs=3)


def save(jobs: Jobs, tokens: int, *, whole: bool = True) -> None:
    folder = jobs.folder.checkpoints / f"tokens-{tokens:015d}"
    folder.mkdir()
    if whole:
        (folder / "progress.json").write_text(json.dumps({"tokens": tokens}))


def test_nothing_was_submitted_and_nothing_began(tmp_path: Path) -> None:
    jobs = Jobs(RunFolder(tmp_path))
    assert (jobs.submissions(), jobs.all(), jobs.since_submission()) == ([], [], [])
    assert jobs.newest() is None
    assert saved_tokens(jobs.folder) == 0


def test_a_job_is_read_back_as_it_was_written(jobs: Jobs) -> None:
    save(jobs, 512)
    record = jobs.begin(place("12.pbs-0001"))
    assert (record.job, record.attempt, record.nodes) == ("12.pbs-0001", 0, ("n1", "n2"))
    assert (record.tokens_at_begin, record.ended) == (512, None)
    assert jobs.all() == [record]
    save(jobs, 1_024)
    jobs.end(record, ended="failed", why="rank 1: lost", bad_nodes=("n2",))
    (ended,) = jobs.all()
    assert ended.tokens_at_end == 1_024
    assert ended.ended_at is not None
    assert ended.ended_at >= record.began_at
    assert ended.model_dump() == {
        **record.model_dump(),
        "ended_at": ended.ended_at,
        "tokens_at_end": 1_024,
        "ended": "failed",
        "why": "rank 1: lost",
        "bad_nodes": ("n2",),
    }


def test_jobs_are_in_the_order_in_which_they_began_not_of_their_names(jobs: Jobs) -> None:
    for job in ("9_2", "10_1", "9_1"):
        jobs.begin(place(job))
    jobs.begin(place("10_1", 1))
    assert [(record.job, record.attempt) for record in jobs.all()] == [
        *(("9_2", 0), ("10_1", 0), ("9_1", 0)),
        ("10_1", 1),
    ]


def test_a_job_that_is_run_again_has_a_record_of_its_own_whether_the_scheduler_tells_or_not(
    jobs: Jobs,
) -> None:
    first, second = jobs.begin(place("7.pbs-0001")), jobs.begin(place("7.pbs-0001"))
    assert (first.attempt, second.attempt) == (0, 1)
    assert jobs.begin(place("8_1", 2)).attempt == 2  # two attempts did not come as far as this
    assert len(jobs.all()) == 3


def test_a_record_that_is_being_written_is_not_read(jobs: Jobs) -> None:
    record = jobs.begin(place("7"))
    (jobs.path / ".8-0.json.4711").write_text('{"job": "8"')
    assert jobs.all() == [record]
    assert not list(jobs.path.glob(".7-0.json.*"))


def test_only_the_jobs_of_the_last_submission_count(jobs: Jobs) -> None:
    submit(jobs, "1")
    jobs.begin(place("1_1"))
    submit(jobs, "2")
    assert [entry["chain"] for entry in jobs.submissions()] == ["1", "2"]
    assert jobs.since_submission() == []
    record = jobs.begin(place("2_1"))
    assert jobs.since_submission() == [record]
    assert len(jobs.all()) == 2


def test_a_run_submitted_by_hand_has_all_its_jobs(jobs: Jobs) -> None:
    records = [jobs.begin(place(job)) for job in ("1", "2")]
    assert jobs.since_submission() == records


def test_a_chain_is_asked_for_by_the_newest_job_that_is_known(jobs: Jobs) -> None:
    submit(jobs, "1.pbs-0001")
    assert jobs.newest() == "1.pbs-0001"
    jobs.begin(place("5.pbs-0001"))
    assert jobs.newest() == "5.pbs-0001"  # the first may be forgotten by now
    submit(jobs, "77")
    jobs.begin(place("77_3"))
    assert jobs.newest() == "77"  # of an array all tasks have one id


def test_half_a_checkpoint_does_not_count_as_saved(jobs: Jobs) -> None:
    save(jobs, 512)
    save(jobs, 10_240)
    save(jobs, 20_480, whole=False)
    assert saved_tokens(jobs.folder) == 10_240
