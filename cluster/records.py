"""What the jobs of a run leave below ``jobs/`` and in its event log.

chain.jsonl          what became of the chain, an event a line: see `cluster.chain`
job.sh               the script
ID.log               what the script said

The ranks tell the rest of the story. A job outlives them, and knows why they ended.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from cluster.chain import ChainState, JobAttempt
from cluster.chain_events import KINDS, ChainEvent
from cluster.scheduler import Scheduler, check_id
from components.checkpoint.metadata import RunProgress, newest_checkpoint, tokens_of
from components.config.check import read_recipe
from components.errors import RecipeError
from components.json_file import open_regular
from components.run.event_log import EventLog, Kind, append_line
from components.run.folder import RunFolder
from components.run.history import stream_lines
from components.run.records import check_record

_LABEL = re.compile(rb"^ *(\d{1,9}): ", re.MULTILINE)  # srun's, before each line of a rank
_HEAD_BYTES = 1 << 16
_VERSIONS = "the record and this program must be of the same version"


class Jobs:
    """The record of one run's jobs."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.path / "jobs"
        self.script = self.path / "job.sh"
        self.record = self.path / "chain.jsonl"

    def chain(self) -> ChainState:
        """Read what has happened; without a record, nothing has.

        Raises:
            RecipeError: the record cannot be read, or a line of it is no event of a chain.
        """
        return ChainState().after(*self._events())

    def note(self, *events: ChainEvent) -> None:
        """Append events; each is on the disk when this returns.

        A line is one append: login node and job may write at a time.
        """
        for event in events:
            append_line(self.record, event.model_dump(), sync=True)

    def ids(self, scheduler: Scheduler) -> list[str]:
        """List the ids from which the scheduler finds what waits and runs.

        Raises:
            RecipeError: the record has what is no id of ``scheduler``.
        """
        found = self.chain().ids
        for job in found:
            check_id(scheduler, job, self.path)
        return found

    def _events(self) -> list[ChainEvent]:
        """Read each whole line; a kill leaves half of one at most."""
        broken: list[str] = []
        found = [
            check_record(line, KINDS.get(str(line.get("kind")), ChainEvent), where, _VERSIONS)
            for where, line in stream_lines(self.record, broken)
        ]
        if len(broken) > max(1, len(found)):
            problem = f"is not JSON, and {len(broken)} such lines are no kills' work"
            raise RecipeError(broken[-1], problem, "repair or delete the line")
        return found


def heading(record: JobAttempt) -> str:
    """Return the line with which each attempt of a job begins in its log."""
    return f"job {record.job}, attempt {record.attempt}"


def ranks_log(folder: RunFolder, record: JobAttempt) -> Path:
    """Return the file that all ranks of a PBS job write; on Slurm each has one of its own."""
    return folder.path / "ranks" / f"{record.job.partition('.')[0]}.log"


def remove_logs(jobs: Jobs) -> None:
    """Remove logs of ranks, but for the last two jobs, first nodes and nodes that failed.

    On Slurm a job leaves a file for each of its nodes, named after the host. Where the
    scheduler has another name for the node, the ranks of its lines tell which node it is.
    """
    per_node = cache(lambda: read_recipe(jobs.folder.recipe).cluster.devices_per_node)
    kept: dict[str, set[str]] = {}
    names: dict[str, set[str]] = {}
    places: dict[str, set[int]] = {}  # of failed nodes, among those that had ranks
    for one in jobs.chain().attempts:
        nodes, failed, bad = map(_short_names, (one.nodes, one.failed_nodes, one.bad_nodes))
        launched = [node for node in nodes if node not in bad or node in failed]
        kept.setdefault(one.job, set()).update(nodes[:1], failed, bad)
        names.setdefault(one.job, set()).update(nodes)
        failed_places = (place for place, node in enumerate(launched) if node in failed)
        places.setdefault(one.job, set()).update(failed_places)
    earlier, folder = list(kept)[:-2], jobs.folder.path / "ranks"
    # The log of a node's preflight has no ranks in it: the other log, removed later, tells.
    for file in sorted(folder.glob("*-*.log"), key=lambda log: "-preflight" not in log.stem):
        job, _, node = file.stem.replace("-preflight", "").partition("-")
        if job in earlier and node not in kept[job]:
            with suppress(OSError, ValueError, RecipeError):
                ranks = set() if node in names[job] else _ranks_in(folder / f"{job}-{node}.log")
                has_failed = places[job] and any(x // per_node() in places[job] for x in ranks)
                if not has_failed and 0 not in ranks:
                    file.unlink()


def _short_names(nodes: Sequence[str]) -> list[str]:
    return [node.partition(".")[0] for node in nodes]


def _ranks_in(log: Path) -> set[int]:
    """Return the ranks with which the first lines of a log are labeled."""
    if not log.exists():
        return set()
    with open_regular(log) as stream:
        return set(map(int, _LABEL.findall(stream.read(_HEAD_BYTES))))


def saved_tokens(folder: RunFolder) -> int:
    """Return the tokens of the newest complete checkpoint; 0 without one."""
    newest = newest_checkpoint(folder.checkpoints)
    return tokens_of(newest) if newest else 0


def now() -> str:
    """Return this moment in UTC as text; such texts sort by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def tell_end(folder: RunFolder, record: JobAttempt) -> None:
    """Write how a job ended to the event log; of one that could not, the next one does."""
    why = f": {record.why}" if record.why else ""
    cause = f"{record.ended}{why}"
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
    at = RunProgress(recipe.clock.steps_of(tokens), tokens)
    log = EventLog(file=folder.journal, writes=True, retry_seconds=retry_seconds)
    log.note(kind, at, cause, evidence, seconds=seconds)
