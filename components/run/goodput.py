"""Goodput: which part of a run's time led to its weights, and where the rest went."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_PREFLIGHT = "preflight"  # with it a job begins, and its ranks start after it
_BEGINS = ("start", "resume", _PREFLIGHT)
_BETWEEN = "between processes"
_OF_JOBS = ("job_end", "exclusion")  # no process tells them: of a lost job, much later
_ENERGY = "energy"  # a sum so far, which took no time of its own
_PARTS = {
    **dict.fromkeys(_BEGINS, "starting"),
    "held_out": "held-out losses",
    "checkpoint": "checkpoints",
    "skip": "guards",
    "lower_lr": "guards",
    "roll_back": "guards",
}


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds from the first start to the last record: of steps that count, and of the rest.

    What neither a step nor an event accounts for is under ``elsewhere``.
    """

    wall_seconds: float
    progress_seconds: float
    lost_seconds: Mapping[str, float]

    @property
    def held_seconds(self) -> float:
        """How long processes of the run held its devices, whatever they did with them."""
        return self.wall_seconds - self.lost_seconds[_BETWEEN]

    @property
    def fraction(self) -> float | None:
        """The part of the time that made progress; None before the first step."""
        return self.progress_seconds / self.wall_seconds if self.wall_seconds else None


@dataclass(kw_only=True)
class Account:
    """Book records in the order of time; each took its ``seconds`` up to its ``time``."""

    began: float | None = None
    last: float = 0.0
    last_kind: str = ""
    lost: dict[str, float] = field(
        default_factory=lambda: {
            "starting": 0.0,
            _BETWEEN: 0.0,
            "steps computed again": 0.0,
            "checkpoints": 0.0,
            "held-out losses": 0.0,
            "guards": 0.0,
        }
    )

    def book(self, record: Mapping[str, Any]) -> None:
        kind = record["kind"]
        if kind in _OF_JOBS or kind == _ENERGY or _is_of_an_earlier_job(record):
            return
        time, seconds = record["time"], record["seconds"]
        if self.began is None:
            self.began = time - seconds
        elif kind in _BEGINS:
            in_one_job = self.last_kind == _PREFLIGHT and kind != _PREFLIGHT
            gap = max(0.0, time - seconds - self.last)
            self.lost["starting" if in_one_job else _BETWEEN] += gap
        if kind in _PARTS:
            self.lost[_PARTS[kind]] += seconds
        self.last, self.last_kind = max(self.last, time), kind

    def throw_away(self, seconds: float) -> None:
        """Count a step that did not lead to the last weights."""
        self.lost["steps computed again"] += seconds

    def close(self, progress_seconds: float) -> Goodput:
        """Balance the account with the seconds of the steps that count."""
        wall = 0.0 if self.began is None else self.last - self.began
        rest = wall - progress_seconds - sum(self.lost.values())
        return Goodput(
            wall_seconds=wall,
            progress_seconds=progress_seconds,
            lost_seconds={**self.lost, "elsewhere": rest},
        )


def held_until(now: float, records: Iterable[Mapping[str, Any]]) -> float:
    """Add up how long all processes of a run held its devices, the last one until ``now``.

    ``records`` are those of ``metrics.jsonl`` and ``journal.jsonl``, in any order; ``now`` is
    in seconds since the epoch, as their times are.
    """
    account = Account()
    for record in sorted(records, key=lambda one: float(one["time"])):
        account.book(record)
    account.last = max(account.last, now)
    return account.close(0.0).held_seconds


def _is_of_an_earlier_job(record: Mapping[str, Any]) -> bool:
    """Whether a new job tells why the ranks of one before ended: the queue lies between."""
    return record["kind"] == "restart" and not record["evidence"]["restart"]
