"""The record of a chain: events in their order, whole or not at all, and their sum."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.chain import EndedEvent, QueuedEvent, RefusedEvent, SubmitEvent, event_text
from cluster.records import Jobs, remove_logs, saved_tokens, utc_now
from components.errors import RecipeError
from components.run.folder import RunFolder
from tests.cluster.jobs import began, ended, submitted


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "checkpoints").mkdir()
    return Jobs(RunFolder(tmp_path))


def save(jobs: Jobs, tokens: int, *, whole: bool = True) -> None:
    folder = jobs.folder.checkpoints / f"tokens-{tokens:015d}"
    folder.mkdir()
    if whole:
        (folder / "progress.json").write_text(json.dumps({"tokens": tokens}))


def test_new_run_has_an_empty_chain(tmp_path: Path) -> None:
    jobs = Jobs(RunFolder(tmp_path))
    chain = jobs.load_chain()
    assert (chain.submissions, chain.attempts, chain.job_ids, chain.last) == ((), (), [], None)
    assert saved_tokens(jobs.folder) == 0


def test_job_is_read_back_as_it_was_recorded(jobs: Jobs) -> None:
    save(jobs, 512)
    record = began(jobs, "12.pbs-0001", nodes=("n1", "n2"))
    assert (record.job, record.attempt, record.nodes) == ("12.pbs-0001", 0, ("n1", "n2"))
    assert (record.tokens_at_begin, record.ended) == (512, None)
    assert jobs.load_chain().open_attempt == record
    save(jobs, 10_240)
    save(jobs, 20_480, whole=False)  # half a checkpoint does not count
    done = ended(jobs, record, "failed", why="rank 1: lost", bad=("n2",))
    assert jobs.load_chain().attempts == (done,)
    assert (done.tokens_at_end, done.ended, done.why) == (10_240, "failed", "rank 1: lost")
    assert done.bad_nodes == ("n2",)
    assert record.began_at <= str(done.ended_at)
    assert jobs.load_chain().open_attempt is None


def test_half_a_line_is_left_out_and_more_are_refused(jobs: Jobs) -> None:
    began(jobs, "7")
    with jobs.record.open("a") as file:
        file.write('{"kind": "ended", "at": "2026')
    assert len(jobs.load_chain().attempts) == 1
    began(jobs, "8")
    assert [one.job for one in jobs.load_chain().attempts] == ["7", "8"]
    jobs.record.write_text("no JSON\nnor this\n")
    with pytest.raises(RecipeError, match=r"chain\.jsonl:2: is not JSON; 2 such lines"):
        jobs.load_chain()


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "began", "at": "2026"},
        {"kind": "lost", "at": "2026", "job": "1", "attempt": 0, "fate": "eaten"},
        {"kind": "submitted", "at": "2026", "chain": "../../other"},
        {"kind": "over", "at": 7, "why": ""},
    ],
)
def test_wrong_event_is_refused_with_its_line(line: dict[str, object], jobs: Jobs) -> None:
    jobs.record.write_text(f"{json.dumps(line)}\n")
    with pytest.raises(RecipeError, match=r"chain\.jsonl:1: "):
        jobs.load_chain()


def test_event_of_a_newer_version_changes_nothing(jobs: Jobs) -> None:
    submitted(jobs, "1")
    before = jobs.load_chain()
    with jobs.record.open("a") as file:
        file.write('{"kind": "thawed", "at": "2026", "by": "sun"}\n')
    after = jobs.load_chain()
    assert after.submissions == before.submissions
    assert after.last is not None
    assert event_text(after.last) == "thawed"


def test_only_jobs_of_the_last_submission_count(jobs: Jobs) -> None:
    submitted(jobs, "1", 3)
    began(jobs, "1_1")
    submitted(jobs, "2", 3)
    chain = jobs.load_chain()
    assert [chain_id for chain_id, _ in chain.submissions] == ["1", "2"]
    assert (chain.current_attempts, chain.jobs_left) == ((), 3)
    record = began(jobs, "2_1")
    chain = jobs.load_chain()
    assert chain.current_attempts == (record,)
    assert (len(chain.attempts), chain.jobs_left) == (2, 2)
    jobs.append_events(SubmitEvent(at=utc_now(), jobs=9))
    jobs.append_events(RefusedEvent(at=utc_now(), why="no such account"))
    after = jobs.load_chain()
    assert (after.submissions, after.current_attempts) == (chain.submissions, (record,))
    assert after.last is not None
    assert event_text(after.last) == "the scheduler rejected the script: no such account"


def test_job_that_begins_before_its_id_is_known_counts(jobs: Jobs) -> None:
    jobs.append_events(SubmitEvent(at=utc_now(), jobs=2))
    began(jobs, "7_1")
    assert jobs.load_chain().job_ids == ["7"]
    assert jobs.load_chain().jobs_left == 1


def test_run_submitted_by_hand_has_no_limit(jobs: Jobs) -> None:
    records = [began(jobs, job) for job in ("1", "2")]
    assert jobs.load_chain().current_attempts == tuple(records)
    assert jobs.load_chain().jobs_left is None


def test_chain_is_known_by_its_newest_job_and_the_one_behind(jobs: Jobs) -> None:
    submitted(jobs, "1.pbs-0001")
    assert jobs.load_chain().job_ids == ["1.pbs-0001"]
    began(jobs, "5.pbs-0001")
    assert jobs.load_chain().job_ids == ["5.pbs-0001"]  # the first may be forgotten by now
    jobs.append_events(QueuedEvent(at=utc_now(), job="5.pbs-0001", successor="6.pbs-0001"))
    assert jobs.load_chain().job_ids == ["5.pbs-0001", "6.pbs-0001"]
    began(jobs, "6.pbs-0001")
    assert jobs.load_chain().job_ids == ["6.pbs-0001"]
    submitted(jobs, "77")
    began(jobs, "77_3")
    assert jobs.load_chain().job_ids == ["77"]  # of an array all tasks have one id


def test_logs_of_first_and_failed_nodes_of_earlier_jobs_are_kept(jobs: Jobs) -> None:
    """All logs of the last two jobs and of unknown jobs are kept."""
    ranks, nodes = jobs.folder.path / "ranks", tuple(f"n{number}.hsn" for number in range(6))
    ranks.mkdir()
    for job, bad, failed in (("7_1", ("n3",), ("n4.hsn",)), ("7_2", (), ()), ("7_3", (), ())):
        began(jobs, job, nodes=nodes)
        suspects: dict[str, Any] = {"bad_nodes": bad, "failed_nodes": failed}
        end = EndedEvent(at="", job=job, attempt=0, tokens=0, ended="failed", **suspects)
        jobs.append_events(end)
        for node in ("n0", "n1", "n3", "n4"):
            (ranks / f"{job}-{node}.log").touch()
            (ranks / f"{job}-preflight-{node}.log").touch()
    others = ("other-n1.log", "7.log", "7_1-host-a.log")  # a host with another name
    for name in others:
        (ranks / name).touch()
    remove_logs(jobs)
    left = {file.name for file in ranks.iterdir()}
    kinds = ("", "preflight-")
    first = {f"7_1-{kind}{node}.log" for kind in kinds for node in ("n0", "n3", "n4")}
    assert {name for name in left if name.startswith("7_1")} == {*first, others[2]}
    assert len(left) == 6 + 2 * 8 + 3
    assert jobs.load_chain().attempts[0].failed_nodes == ("n4.hsn",)
