"""The record of a chain: events in their order, whole or not at all, and their sum."""

import json
from pathlib import Path

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


def test_nothing_was_submitted_and_nothing_began(tmp_path: Path) -> None:
    jobs = Jobs(RunFolder(tmp_path))
    chain = jobs.load_chain()
    assert (chain.submissions, chain.attempts, chain.job_ids, chain.last) == ((), (), [], None)
    assert saved_tokens(jobs.folder) == 0


def test_a_job_is_read_back_as_it_was_told(jobs: Jobs) -> None:
    save(jobs, 512)
    record = began(jobs, "12.pbs-0001", nodes=("n1", "n2"))
    assert (record.job, record.attempt, record.nodes) == ("12.pbs-0001", 0, ("n1", "n2"))
    assert (record.tokens_at_begin, record.ended) == (512, None)
    assert jobs.load_chain().open_attempt == record
    save(jobs, 1_024)
    done = ended(jobs, record, "failed", why="rank 1: lost", bad=("n2",))
    assert jobs.load_chain().attempts == (done,)
    assert (done.tokens_at_end, done.ended, done.why) == (1_024, "failed", "rank 1: lost")
    assert done.bad_nodes == ("n2",)
    assert done.ended_at is not None
    assert done.ended_at >= record.began_at
    assert jobs.load_chain().open_attempt is None


def test_half_a_line_that_a_kill_left_is_left_out_and_the_next_is_whole(jobs: Jobs) -> None:
    began(jobs, "7")
    with jobs.record.open("a") as file:
        file.write('{"kind": "ended", "at": "2026')
    assert len(jobs.load_chain().attempts) == 1
    began(jobs, "8")
    assert [one.job for one in jobs.load_chain().attempts] == ["7", "8"]


def test_more_broken_lines_than_kills_explain_are_refused(jobs: Jobs) -> None:
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
def test_a_line_that_is_no_event_of_its_kind_is_refused_with_its_place(
    line: dict[str, object], jobs: Jobs
) -> None:
    jobs.record.write_text(f"{json.dumps(line)}\n")
    with pytest.raises(RecipeError, match=r"chain\.jsonl:1: "):
        jobs.load_chain()


def test_an_event_of_a_newer_version_changes_nothing(jobs: Jobs) -> None:
    submitted(jobs, "1")
    before = jobs.load_chain()
    with jobs.record.open("a") as file:
        file.write('{"kind": "thawed", "at": "2026", "by": "sun"}\n')
    assert jobs.load_chain().submissions == before.submissions
    last = jobs.load_chain().last
    assert last is not None
    assert event_text(last) == "thawed"


def test_only_the_jobs_of_the_last_hand_over_count(jobs: Jobs) -> None:
    submitted(jobs, "1", 3)
    began(jobs, "1_1")
    submitted(jobs, "2", 3)
    chain = jobs.load_chain()
    assert [chain_id for chain_id, _ in chain.submissions] == ["1", "2"]
    assert (chain.current_attempts, chain.jobs_left) == ((), 3)
    record = began(jobs, "2_1")
    assert jobs.load_chain().current_attempts == (record,)
    assert (len(jobs.load_chain().attempts), jobs.load_chain().jobs_left) == (2, 2)


def test_a_job_that_begins_before_its_id_is_known_belongs_to_its_hand_over(jobs: Jobs) -> None:
    jobs.append_events(SubmitEvent(at=utc_now(), jobs=2))
    began(jobs, "7_1")
    assert jobs.load_chain().job_ids == ["7"]
    assert jobs.load_chain().jobs_left == 1


def test_a_hand_over_that_is_refused_changes_nothing(jobs: Jobs) -> None:
    submitted(jobs, "1")
    ended(jobs, began(jobs, "1_1"), "stopped")
    before = jobs.load_chain()
    jobs.append_events(
        SubmitEvent(at=utc_now(), jobs=9), RefusedEvent(at=utc_now(), why="no such account")
    )
    after = jobs.load_chain()
    assert (after.submissions, after.current_attempts) == (
        before.submissions,
        before.current_attempts,
    )
    assert after.last is not None
    assert event_text(after.last) == "the scheduler rejected the script: no such account"


def test_a_run_submitted_by_hand_has_all_its_jobs_and_no_limit(jobs: Jobs) -> None:
    records = [began(jobs, job) for job in ("1", "2")]
    assert jobs.load_chain().current_attempts == tuple(records)
    assert jobs.load_chain().jobs_left is None


def test_a_chain_is_asked_for_by_its_newest_job_and_the_one_queued_behind_it(
    jobs: Jobs,
) -> None:
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


def test_half_a_checkpoint_does_not_count_as_saved(jobs: Jobs) -> None:
    save(jobs, 512)
    save(jobs, 10_240)
    save(jobs, 20_480, whole=False)
    assert saved_tokens(jobs.folder) == 10_240


def test_of_earlier_jobs_the_logs_of_first_and_failed_nodes_are_kept(jobs: Jobs) -> None:
    """Those of the last two jobs are kept as they are, and those of nobody's jobs."""
    ranks, nodes = jobs.folder.path / "ranks", tuple(f"n{number}.hsn" for number in range(6))
    ranks.mkdir()
    for job, bad, failed in (("7_1", ("n3",), ("n4.hsn",)), ("7_2", (), ()), ("7_3", (), ())):
        record = began(jobs, job, nodes=nodes)
        jobs.append_events(
            EndedEvent(
                at=utc_now(),
                job=job,
                attempt=record.attempt,
                tokens=0,
                ended="failed",
                bad_nodes=bad,
                failed_nodes=failed,
            )
        )
        for node in ("n0", "n1", "n3", "n4"):
            (ranks / f"{job}-{node}.log").touch()
            (ranks / f"{job}-preflight-{node}.log").touch()
    (ranks / "other-n1.log").touch()
    (ranks / "7.log").touch()
    remove_logs(jobs)
    left = {file.name for file in ranks.iterdir()}
    first = {
        f"7_1-{part}{node}.log" for part in ("", "preflight-") for node in ("n0", "n3", "n4")
    }
    assert {name for name in left if name.startswith("7_1")} == first
    assert len(left) == 6 + 2 * 8 + 2
    assert jobs.load_chain().attempts[0].failed_nodes == ("n4.hsn",)


def test_logs_of_hosts_with_other_names_stay(jobs: Jobs) -> None:
    ranks = jobs.folder.path / "ranks"
    ranks.mkdir()
    for job in ("7_1", "7_2", "7_3"):
        began(jobs, job, nodes=("node1", "node2"))
        for host in ("host-a", "node2"):
            (ranks / f"{job}-{host}.log").touch()
    remove_logs(jobs)
    assert {log.name for log in ranks.glob("7_1*")} == {"7_1-host-a.log"}
