"""What the jobs of a run leave below ``jobs/`` and in its event log, and how the run is.

submitted.json       each hand-over to the scheduler: its id, when, its words, how many jobs
ID-ATTEMPT.json      one job: when, where, from how many tokens to how many, how it ended
cancelled            the last hand-over was cancelled: a job that begins ends at once
last                 the job that has begun is the last of its chain: on PBS it queues no other
job.sh               the script
ID.log               what the script said

The ranks tell the rest of the story. A job outlives them, and knows why they ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.scheduler import JobPlace, JobState, Scheduler, SchedulerError, check_id
from components.checkpoint.metadata import RunProgress, newest_checkpoint, tokens_of
from components.config.schema.recipe import read_recipe
from components.errors import RecipeError
from components.run.event_log import EventLog, Kind
from components.run.folder import RunFolder, existing_run_folder
from components.run.history import read_lines
from components.run.records import JobLifeRecord, SubmissionsRecord, read_record
from components.run.writer_lock import LOCK, writer_of

WITHOUT_A_WORD = "ended without a word: put back, killed, or lost with its node"
# Slurm's reasons (squeue's manual, "Job reason codes"); the first are none to worry.
REASONS: Mapping[str, str] = {
    "Resources": "waits for nodes to become free",
    "Priority": "waits behind jobs of higher priority",
    "Dependency": "waits for the job before it",
    "JobArrayTaskLimit": "waits for the job before it",
    "BeginTime": "was put back into the queue and waits a little",
    "PartitionTimeLimit": "will never start: it asks for more hours than the queue allows",
    "PartitionNodeLimit": "will never start: it asks for more nodes than the queue allows",
    "PartitionDown": "waits until the site opens the queue again",
    "ReqNodeNotAvail": "waits for nodes that are down, drained or reserved",
    "JobHeldUser": "was held by its user: scontrol release",
    "JobHeldAdmin": "was held by the site: ask them",
    "AssocGrpBillingMinutes": "will not start before the account has budget again",
    "AssocGrpCPUMinutesLimit": "will not start before the account has budget again",
    "QOSMaxJobsPerUserLimit": "waits until fewer of your jobs run",
    "QOSMaxWallDurationPerJobLimit": "will never start: it asks for more hours than allowed",
    "InvalidAccount": "will never start: the account is not known here",
    "InvalidQOS": "will never start: the QoS is not known here",
    "BadConstraints": "will never start: no nodes are as it asks for",
}


class Jobs:
    """The records of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.path / "jobs"
        self.script = self.path / "job.sh"
        self.cancelled = self.path / "cancelled"
        self.last = self.path / "last"

    def submissions(self) -> list[dict[str, Any]]:
        """List the hand-overs, oldest first."""
        file = self.path / "submitted.json"
        if not file.exists():
            return []
        return [one.model_dump() for one in read_record(file, SubmissionsRecord).submissions]

    def newest(self, scheduler: Scheduler | None = None) -> str | None:
        """Return the id from which the scheduler finds what waits and runs.

        PBS forgets jobs after some days, the first of a chain before the others.

        Raises:
            RecipeError: a file of the folder says what is no id of ``scheduler``, if given.
        """
        submissions, records = self.submissions(), self.since_submission()
        if not submissions:
            return None
        chain = chain_of(records[-1].job) if records else str(submissions[-1]["chain"])
        if scheduler is not None:
            check_id(scheduler, chain, self.path)
        return chain

    def add_submission(self, chain: str, *, at: str, words: Sequence[str], jobs: int) -> None:
        """Record a hand-over; ``at`` is a moment before it, for a job may begin at once."""
        entry = {"chain": chain, "at": at, "words": list(words), "jobs": jobs}
        tree = {"submissions": [*self.submissions(), entry]}
        self.folder.write_json("jobs/submitted.json", tree)

    def all(self) -> list[JobLifeRecord]:
        """List all jobs that began, oldest first."""
        found = []
        for file in self.path.glob("*-[0-9]*.json"):
            record = read_record(file, JobLifeRecord)
            if file.name != _name(record):  # an id is a part of other paths too
                problem = f"it says that it is of job {record.job!r}"
                raise RecipeError(str(file), problem, "put the file back as it was")
            found.append(record)
        return sorted(found, key=lambda record: (record.began_at, record.attempt))

    def since_submission(self) -> list[JobLifeRecord]:
        """List the jobs of the last hand-over."""
        submissions = self.submissions()
        after = submissions[-1]["at"] if submissions else ""
        return [record for record in self.all() if record.began_at >= after]

    def begin(self, place: JobPlace) -> JobLifeRecord:
        """Record that a job begins; not every scheduler tells that it is run again."""
        later = [record.attempt + 1 for record in self.all() if record.job == place.job]
        record = JobLifeRecord(
            job=place.job,
            attempt=max([place.attempt, *later]),
            nodes=place.nodes,
            began_at=now(),
            tokens_at_begin=saved_tokens(self.folder),
        )
        self._write(record)
        return record

    def end(
        self, record: JobLifeRecord, *, ended: str, why: str, bad_nodes: tuple[str, ...]
    ) -> JobLifeRecord:
        """Record how a job ended, and return its whole record."""
        known = {"ended_at": now(), "tokens_at_end": saved_tokens(self.folder), "why": why}
        done = record.model_copy(update={**known, "ended": ended, "bad_nodes": bad_nodes})
        self._write(done)
        return done

    def _write(self, record: JobLifeRecord) -> None:
        self.folder.write_json(f"jobs/{_name(record)}", record.model_dump())


def _name(record: JobLifeRecord) -> str:
    return f"{record.job}-{record.attempt}.json"


def chain_of(job: str) -> str:
    """Return the chain's id of a job: an array's tasks are ``ID_NUMBER``."""
    return job.partition("_")[0]


def heading(record: JobLifeRecord) -> str:
    """Return the line with which each attempt of a job begins in its log."""
    return f"job {record.job}, attempt {record.attempt}"


def ranks_log(folder: RunFolder, record: JobLifeRecord) -> Path:
    """Return the file that all ranks of a PBS job write; on Slurm each has one of its own."""
    return folder.path / "ranks" / f"{record.job.partition('.')[0]}.log"


def saved_tokens(folder: RunFolder) -> int:
    """Return the tokens of the newest complete checkpoint; 0 without one."""
    newest = newest_checkpoint(folder.checkpoints)
    return tokens_of(newest) if newest else 0


def now() -> str:
    """Return this moment in UTC as text; such texts sort by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def tell_end(folder: RunFolder, record: JobLifeRecord) -> None:
    """Write how a job ended to the event log; of one that could not, the next one does."""
    why = f": {record.why}" if record.why else ""
    cause = f"{record.ended}{why}" if record.ended else WITHOUT_A_WORD
    evidence = {"job": record.job, "attempt": record.attempt, "nodes": record.nodes}
    tell(folder, "job_end", cause, evidence)


def tell(
    folder: RunFolder,
    kind: Kind,
    cause: str,
    evidence: Mapping[str, Any],
    *,
    seconds: float = 0.0,
    retry_seconds: float = 0.0,  # at the end of a job its wall is near
) -> None:
    """Write an event to the run's event log, at the tokens that are saved."""
    tokens, recipe = saved_tokens(folder), read_recipe(folder.recipe)
    at = RunProgress(recipe.ramp.steps(tokens // recipe.budget.sequence_length), tokens)
    log = EventLog(file=folder.journal, writes=True, retry_seconds=retry_seconds)
    log.note(kind, at, cause, evidence, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One run at this moment; ``state`` is one word, ``why`` a sentence or nothing."""

    run: str
    recipe: str
    state: str
    why: str
    tokens: int
    total_tokens: int
    chain: str | None
    queued: tuple[JobState, ...] | None
    jobs: tuple[JobLifeRecord, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"jobs": [job.model_dump() for job in self.jobs]}


def status_of(path: Path, scheduler: Scheduler | None) -> RunStatus:
    """Return the state of the run in ``path``; without a scheduler by its folder alone.

    Raises:
        RecipeError: ``path`` is no run folder, or what it calls a job is no id of one.
    """
    folder = existing_run_folder(path)
    recipe, jobs = read_recipe(folder.recipe), Jobs(folder)
    chain = jobs.newest(scheduler)
    queued: tuple[JobState, ...] | None = None
    trouble = "the scheduler is not reached from here"
    if scheduler is not None and chain is not None:
        try:
            queued = tuple(scheduler.states(chain, jobs.path))
        except SchedulerError as error:
            trouble = str(error)
    if folder.ended == "finished":
        state, why = "finished", ""
    elif recipe.cluster.scheduler == "none":
        state, why = _local_state(folder)
    elif chain is None:
        state, why = "not submitted", ""
    elif queued is None:
        state, why = "unknown", trouble
    else:
        state, why = _state(queued, jobs.since_submission())
    return RunStatus(
        run=str(path),
        recipe=recipe.name,
        state=state,
        why=why,
        tokens=saved_tokens(folder),
        total_tokens=recipe.budget.total_tokens,
        chain=chain,
        queued=queued,
        jobs=tuple(jobs.all()),
    )


def _local_state(folder: RunFolder) -> tuple[str, str]:
    """Tell how a run without a scheduler is, by its writer's lock and its event log."""
    try:
        writer = writer_of(folder.path)
    except OSError as error:  # somebody else's run
        return "unknown", f"whether it runs: {LOCK} cannot be opened: {error.strerror}"
    if writer is not None:
        return "running", str(writer)
    go_on = f"go on: python run.py resume={folder.path}"
    if folder.ended == "stopped":
        return "stopped", go_on
    begun = any(event["kind"] in {"start", "resume"} for event in read_lines(folder.journal))
    when = "without a word" if begun else "before its first step"
    return "killed", f"it ended {when}; {go_on}"


def _state(queued: Sequence[JobState], begun: Sequence[JobLifeRecord]) -> tuple[str, str]:
    for job in queued:
        if job.state == "running":
            return "running", f"job {job.job} on {job.nodes}"
    if queued:
        return "pending", explain(queued[0].why)
    if not begun:
        return "lost", "its jobs left the queue before any of them began: were they cancelled?"
    last = begun[-1]
    if last.ended is None:
        return "lost", f"job {last.job} ended without a word: jobs/{last.job}.log has its last"
    return last.ended, last.why


def explain(reason: str) -> str:
    """Return a scheduler's reason with what it means, if that is known."""
    code = reason.partition(",")[0].strip("() ")
    return f"{code}: {REASONS[code]}" if code in REASONS else reason
