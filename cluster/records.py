"""What the jobs of a run leave below ``jobs/`` in its folder, and in the run's event log.

submitted.json       each hand-over to the scheduler: its id, when, by which words, of how
                     many jobs
ID-ATTEMPT.json      one job: when, where, from how many tokens to how many, how it ended
cancelled            the last hand-over was cancelled: a job that begins ends at once
last                 the job that has begun is the last of its chain: on PBS it queues no other
job.sh               the script
ID.log               what the script said

The ranks tell the rest of the story. A job outlives them, and knows why they ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.scheduler import JobPlace, Scheduler, check_id
from components.checkpoint.metadata import newest_checkpoint, tokens_of
from components.config.schema.recipe import read_recipe
from components.errors import RecipeError
from components.preflight.verdict import PreflightVerdict
from components.run.event_log import EventLog, Kind
from components.run.folder import RunFolder
from components.run.records import JobLifeRecord, SubmissionsRecord, read_record

ENDS = ("finished", "stopped", "failed")


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """One job's life; what ended without a word has no ``ended``."""

    job: str
    attempt: int
    nodes: tuple[str, ...]
    began_at: str
    tokens_at_begin: int
    ended_at: str | None = None
    tokens_at_end: int | None = None
    ended: str | None = None
    why: str = ""
    bad_nodes: tuple[str, ...] = ()


class Jobs:
    """The records of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.path / "jobs"

    @property
    def script(self) -> Path:
        return self.path / "job.sh"

    @property
    def cancelled(self) -> Path:
        return self.path / "cancelled"

    @property
    def last(self) -> Path:
        return self.path / "last"

    def submissions(self) -> list[dict[str, Any]]:
        """List the hand-overs, oldest first."""
        file = self.path / "submitted.json"
        if not file.exists():
            return []
        return [one.model_dump() for one in read_record(file, SubmissionsRecord).submissions]

    def newest(self) -> str | None:
        """Return the id from which the scheduler finds what waits and runs.

        PBS forgets jobs after some days, the first of a chain before the others.
        """
        submissions, records = self.submissions(), self.since_submission()
        if not submissions:
            return None
        return records[-1].job.partition("_")[0] if records else str(submissions[-1]["chain"])

    def chain(self, scheduler: Scheduler) -> str | None:
        """Return the newest id, for ``scheduler`` to be asked about.

        Raises:
            RecipeError: a file of the folder says what is no id.
        """
        chain = self.newest()
        if chain is not None:
            check_id(scheduler, chain, self.path)
        return chain

    def add_submission(self, chain: str, *, at: str, words: Sequence[str], jobs: int) -> None:
        """Note a hand-over; ``at`` is a moment before it, for a job may begin at once."""
        entry = {"chain": chain, "at": at, "words": list(words), "jobs": jobs}
        tree = {"submissions": [*self.submissions(), entry]}
        self.folder.write_json("jobs/submitted.json", tree)

    def all(self) -> list[JobRecord]:
        """List all jobs that began, oldest first."""
        return sorted(self._read(), key=lambda record: (record.began_at, record.attempt))

    def since_submission(self) -> list[JobRecord]:
        """List the jobs of the last hand-over."""
        submissions = self.submissions()
        after = submissions[-1]["at"] if submissions else ""
        return [record for record in self.all() if record.began_at >= after]

    def begin(self, place: JobPlace) -> JobRecord:
        """Note that a job begins; not every scheduler tells that it is run again."""
        before = [record.attempt for record in self.all() if record.job == place.job]
        record = JobRecord(
            job=place.job,
            attempt=max([place.attempt, *(attempt + 1 for attempt in before)]),
            nodes=place.nodes,
            began_at=now(),
            tokens_at_begin=saved_tokens(self.folder),
        )
        self._write(record)
        return record

    def end(
        self, record: JobRecord, *, ended: str, why: str, bad_nodes: tuple[str, ...]
    ) -> JobRecord:
        """Note how a job ended, and return its whole record."""
        done = replace(
            record,
            ended_at=now(),
            tokens_at_end=saved_tokens(self.folder),
            ended=ended,
            why=why,
            bad_nodes=bad_nodes,
        )
        self._write(done)
        return done

    def _write(self, record: JobRecord) -> None:
        self.folder.write_json(f"jobs/{_name(record)}", asdict(record))

    def _read(self) -> Iterator[JobRecord]:
        for file in self.path.glob("*-[0-9]*.json"):
            record = JobRecord(**read_record(file, JobLifeRecord).model_dump())
            if file.name != _name(record):  # an id is a part of other paths too
                problem = f"it says that it is of job {record.job!r}"
                raise RecipeError(str(file), problem, "put the file back as it was")
            yield record


def _name(record: JobRecord) -> str:
    return f"{record.job}-{record.attempt}.json"


def saved_tokens(folder: RunFolder) -> int:
    """Read how far the newest complete checkpoint is; 0 without one."""
    newest = newest_checkpoint(folder.checkpoints)
    return tokens_of(newest) if newest else 0


def now() -> str:
    """Name this moment in UTC; such texts sort by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


WITHOUT_A_WORD = "ended without a word: put back, killed, or lost with its node"


def tell_end(folder: RunFolder, record: JobRecord) -> None:
    """Tell how a job ended; of one that could not say so the next one tells."""
    why = f": {record.why}" if record.why else ""
    cause = f"{record.ended}{why}" if record.ended else WITHOUT_A_WORD
    evidence = {"job": record.job, "attempt": record.attempt, "nodes": record.nodes}
    _tell(folder, "job_end", cause, evidence)


def tell_exclusion(folder: RunFolder, record: JobRecord, nodes: Sequence[str]) -> None:
    """Tell which nodes the next job avoids."""
    _tell(folder, "exclusion", record.why, {"job": record.job, "avoided": nodes})


def tell_preflight(folder: RunFolder, verdict: PreflightVerdict) -> None:
    """Tell which nodes a job's ranks do not start on; it has begun, and may wait for room."""
    excluded = {
        one.node: [found.check for found in one.bad] for one in verdict.nodes if one.bad
    }
    _tell(
        folder,
        "preflight",
        "; ".join(verdict.reasons()) or "all nodes are good",
        {"nodes": len(verdict.nodes), "needed": verdict.needed, "excluded": excluded},
        seconds=verdict.seconds,
        retry_seconds=read_recipe(folder.recipe).checkpoint.retry_seconds,
    )


def _tell(
    folder: RunFolder,
    kind: Kind,
    cause: str,
    evidence: Mapping[str, Any],
    *,
    seconds: float = 0.0,
    retry_seconds: float = 0.0,  # at the end of a job its wall is near
) -> None:
    tokens, recipe = saved_tokens(folder), read_recipe(folder.recipe)
    EventLog(file=folder.journal, writes=True, retry_seconds=retry_seconds).note(
        kind,
        step=recipe.ramp.steps(tokens // recipe.budget.sequence_length),
        tokens=tokens,
        cause=cause,
        seconds=seconds,
        evidence=evidence,
    )
