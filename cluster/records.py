"""Files of a run's jobs below ``jobs/``, and job events in the run's event log.

chain.jsonl          events of the chain, one per line: see `cluster.load_chain`
job.sh               the job script
ID.log               output of the job script

The ranks write all other events. A job outlives its ranks and records why they ended.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.chain import KINDS, ChainEvent, ChainState, JobAttempt
from cluster.scheduler import Scheduler, check_id, short_name
from components.checkpoint.metadata import RunProgress, newest_checkpoint, tokens_of
from components.config.check import read_recipe
from components.errors import RecipeError
from components.run.event_log import EventKind, EventLog, append_line
from components.run.folder import RunFolder
from components.run.history import stream_lines
from components.run.records import check_record

_VERSIONS = "the record and this program must be of the same version"


class Jobs:
    """The record of one run's jobs."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.path / "jobs"
        self.script = self.path / "job.sh"
        self.record = self.path / "chain.jsonl"

    def load_chain(self) -> ChainState:
        """Read the chain's state; it is empty without a record."""
        return ChainState().apply_events(*self._events())

    def append_events(self, *events: ChainEvent) -> None:
        """Append events and sync them to disk.

        Each line is one append, because a login node and a job may write at the same time.
        """
        for event in events:
            append_line(self.record, event.model_dump(), sync=True)

    def list_job_ids(self, scheduler: Scheduler) -> list[str]:
        """Return the job ids by which the scheduler finds the chain; refuse invalid ids."""
        ids = self.load_chain().job_ids
        for job in ids:
            check_id(scheduler, job, self.path)
        return ids

    def _events(self) -> list[ChainEvent]:
        """Read all complete lines. Raise if more are broken than kills explain."""
        broken: list[str] = []
        events = [
            check_record(line, KINDS.get(str(line.get("kind")), ChainEvent), where, _VERSIONS)
            for where, line in stream_lines(self.record, broken)
        ]
        if len(broken) > max(1, len(events)):
            problem = f"is not JSON; {len(broken)} such lines are too many for killed writers"
            raise RecipeError(broken[-1], problem, "repair or delete the line")
        return events


def format_heading(record: JobAttempt) -> str:
    """Return the first line of an attempt in the job's log."""
    return f"job {record.job}, attempt {record.attempt}"


def ranks_log(folder: RunFolder, record: JobAttempt) -> Path:
    """Return the log shared by all ranks of a PBS job. On Slurm there is one per node."""
    return folder.path / "ranks" / f"{record.job.partition('.')[0]}.log"


def remove_logs(jobs: Jobs) -> None:
    """Remove old rank logs. Keep the last two jobs, first nodes, and failed or bad nodes.

    A Slurm job writes logs per node, named after the host. Logs of hosts whose name in the
    scheduler differs are kept.
    """
    needed: dict[str, set[str]] = {}
    nodes: dict[str, set[str]] = {}
    for attempt in jobs.load_chain().attempts:
        needed_nodes = (*attempt.nodes[:1], *attempt.failed_nodes, *attempt.bad_nodes)
        needed.setdefault(attempt.job, set()).update(map(short_name, needed_nodes))
        nodes.setdefault(attempt.job, set()).update(map(short_name, attempt.nodes))
    for job in list(nodes)[:-2]:
        for node in nodes[job] - needed[job]:
            for name in (f"{job}-{node}.log", f"{job}-preflight-{node}.log"):
                with suppress(OSError):
                    (jobs.folder.path / "ranks" / name).unlink()


def saved_tokens(folder: RunFolder) -> int:
    """Return the token count of the newest complete checkpoint; 0 without a checkpoint."""
    newest = newest_checkpoint(folder.checkpoints)
    return tokens_of(newest) if newest else 0


def utc_now() -> str:
    """Return the current UTC time as a string that sorts by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def record_job_end(folder: RunFolder, record: JobAttempt) -> None:
    """Write a job's end to the event log. The next job does so for a job that could not."""
    why = f": {record.why}" if record.why else ""
    cause = f"{record.ended}{why}"
    evidence = {"job": record.job, "attempt": record.attempt, "nodes": record.nodes}
    record_event(folder, "job_end", cause, evidence)


def record_event(
    folder: RunFolder,
    kind: EventKind,
    cause: str,
    evidence: Mapping[str, Any],
    *,
    seconds: float = 0.0,
    retry_seconds: float = 0.0,  # 0 because a job's end is near its walltime limit
) -> None:
    """Write an event to the run's event log, at the tokens of the newest checkpoint."""
    tokens, recipe = saved_tokens(folder), read_recipe(folder.recipe)
    at = RunProgress(recipe.token_clock.steps_of(tokens), tokens)
    log = EventLog(file=folder.events, writes=True, retry_seconds=retry_seconds)
    log.write_event(kind, at, cause, evidence, seconds=seconds)
