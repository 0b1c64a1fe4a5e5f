"""What the jobs of a run leave below ``jobs/`` in its folder: a file a job, and who submitted.

submitted.json       each hand-over to the scheduler: its id, when, the script
ID-ATTEMPT.json      one job: when, where, from how many tokens to how many, how it ended
job.sh               the script
ID.log               what the script said
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.scheduler import Place
from components.train.run_folder import RunFolder

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

    def submissions(self) -> list[dict[str, Any]]:
        """List the hand-overs, oldest first."""
        file = self.path / "submitted.json"
        if not file.exists():
            return []
        found: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))["submissions"]
        return found

    def add_submission(self, chain: str, *, words: Sequence[str]) -> None:
        entry = {"chain": chain, "at": now(), "words": list(words)}
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

    def begin(self, place: Place) -> JobRecord:
        record = JobRecord(
            job=place.job,
            attempt=place.attempt,
            nodes=place.nodes,
            began_at=now(),
            tokens_at_begin=saved_tokens(self.folder),
        )
        self._write(record)
        return record

    def end(
        self, record: JobRecord, *, ended: str, why: str, bad_nodes: tuple[str, ...]
    ) -> None:
        done = replace(
            record,
            ended_at=now(),
            tokens_at_end=saved_tokens(self.folder),
            ended=ended,
            why=why,
            bad_nodes=bad_nodes,
        )
        self._write(done)

    def _write(self, record: JobRecord) -> None:
        name = f"jobs/{record.job}-{record.attempt}.json"
        self.folder.write_json(name, asdict(record))

    def _read(self) -> Iterator[JobRecord]:
        for file in self.path.glob("*-[0-9]*.json"):
            tree = json.loads(file.read_text("utf-8"))
            lists = {key: tuple(tree[key]) for key in ("nodes", "bad_nodes")}
            yield JobRecord(**{**tree, **lists})


def saved_tokens(folder: RunFolder) -> int:
    """Read how far the newest complete checkpoint is; 0 without one."""
    markers = folder.checkpoints.glob("tokens-*/progress.json")
    newest = max(markers, default=None)
    return int(json.loads(newest.read_text("utf-8"))["tokens"]) if newest else 0


def now() -> str:
    """Name this moment in UTC; such texts sort by time."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
