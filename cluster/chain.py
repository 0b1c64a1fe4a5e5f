"""The chain of a run's jobs as a state machine: the state that its events add up to.

The events are in `cluster.chain_events`, and `cluster.decisions` says what may follow. Nothing
of it asks a scheduler, a clock or a disk.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

# What ended an attempt that left no word itself. The first are the run's own affair.
Fate = Literal["wall", "memory", "failed", "put back", "node", "cancelled", "gone"]
OWN_FATES = ("wall", "memory", "failed")
FATES: Mapping[Fate, str] = {
    "wall": "was killed at its wall, before it had saved",
    "memory": "was killed: a node's memory was full",
    "failed": "ended without a word: its script failed",
    "put back": "was put back into the queue",
    "node": "was lost with one of its nodes",
    "cancelled": "was cancelled by scancel or qdel",
    "gone": "ended without a word: killed, or lost with its node",
}


class Event(Protocol):
    """What happens to a chain: see `cluster.chain_events`."""

    at: str

    def change(self, chain: "ChainState") -> "ChainState":
        """Return the chain after this event."""

    @property
    def text(self) -> str:
        """The event in words."""


@dataclass(frozen=True, kw_only=True)
class JobAttempt:
    """One attempt of one job, from its beginning to its end if that is known."""

    job: str
    attempt: int
    nodes: tuple[str, ...]
    began_at: str
    tokens_at_begin: int
    ended_at: str | None = None
    tokens_at_end: int | None = None
    ended: str | None = None  # stopped, finished, failed; lost: others tell
    why: str = ""
    bad_nodes: tuple[str, ...] = ()
    failed_nodes: tuple[str, ...] = ()  # where it failed first, to blame or not
    bad_step: int | None = None  # whose figures were not finite
    fate: Fate | None = None

    @property
    def failed_by_itself(self) -> bool:
        """Whether the run is to blame if nothing was saved, and not what it runs on."""
        return self.fate is None or self.fate in OWN_FATES


@dataclass(frozen=True, kw_only=True)
class ChainState:
    """What all events add up to."""

    submissions: tuple[tuple[str | None, int], ...] = ()  # id, once known, and number of jobs
    words: tuple[str, ...] = ()  # of the last hand-over
    attempts: tuple[JobAttempt, ...] = ()
    first: int = 0  # attempts of earlier hand-overs
    successor: str | None = None
    unqueued: str = ""  # why there is no successor
    avoided: Mapping[str, str] = field(default_factory=dict)  # until when; oldest first
    cancelled: bool = False
    over: str = ""
    before: "ChainState | None" = None  # what it was, if the scheduler refuses
    last: Event | None = None

    @property
    def current(self) -> tuple[JobAttempt, ...]:
        """The attempts since the last hand-over."""
        return self.attempts[self.first :]

    @property
    def open(self) -> JobAttempt | None:
        """The attempt that has begun and of which no end is known."""
        newest = self.current[-1] if self.current else None
        return newest if newest is not None and newest.ended is None else None

    def newest_of(self, job: str | None) -> JobAttempt:
        """Return the newest attempt of ``job``, or of any job if that one has none."""
        own = [one for one in self.attempts if one.job == job]
        return (own or self.attempts)[-1]

    @property
    def jobs_left(self) -> int | None:
        """Count the jobs that have not begun; None where someone submits by hand."""
        if not self.submissions:
            return None
        return max(0, self.submissions[-1][1] - len({one.job for one in self.current}))

    @property
    def ids(self) -> list[str]:
        """Name the jobs from which a scheduler finds all that wait or run; first the newest.

        PBS forgets jobs, at once where it keeps no history.
        """
        if self.current:
            named = [self.current[-1].job, self.successor]
            return list(dict.fromkeys(chain_of(one) for one in named if one is not None))
        submitted = self.submissions[-1][0] if self.submissions else None
        return [] if submitted is None else [submitted]

    def after(self, *events: "Event") -> "ChainState":
        """Return what it is once these have happened."""
        chain = self
        for event in events:
            chain = replace(event.change(chain), last=event)
        return chain

    def closed(self, job: str, attempt: int, **known: Any) -> "ChainState":
        """Return it with the end of an attempt."""
        attempts = tuple(
            replace(one, **known) if (one.job, one.attempt) == (job, attempt) else one
            for one in self.attempts
        )
        return replace(self, attempts=attempts)

    def without(self, nodes: Iterable[str]) -> dict[str, str]:
        """List what is avoided, but for these nodes."""
        gone = set(nodes)
        return {node: until for node, until in self.avoided.items() if node not in gone}


def chain_of(job: str) -> str:
    """Return the chain's id of a job: an array's tasks are ``ID_NUMBER``."""
    return job.partition("_")[0]
