"""The chain of a run's jobs as a state machine: events, and the state they add up to.

An event is a line of ``jobs/chain.jsonl``, the only record of the chain. `cluster.decisions`
decides what may happen next. This module calls no scheduler and reads no clock and no disk.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from components.run.records import Natural, RunRecord, Texts

# Causes of an attempt's end that the attempt did not record. The run causes the first three.
Fate = Literal["wall", "memory", "failed", "put back", "node", "cancelled", "gone"]
OWN_FATES = ("wall", "memory", "failed")
FATES: Mapping[Fate, str] = {
    "wall": "was killed at its time limit before it saved a checkpoint",
    "memory": "was killed because a node ran out of memory",
    "failed": "ended without a message: its script failed",
    "put back": "was requeued",
    "node": "was lost because a node failed",
    "cancelled": "was cancelled by scancel or qdel",
    "gone": "ended without a message: it was killed or its node failed",
}
Job = Annotated[str, Field(pattern=r"^[^/\x00]*$")]  # part of file names


class ChainEvent(RunRecord):
    """Fields common to all events. ``at`` is UTC in a format that sorts by time.

    An event of an unknown kind, written by a newer version, does not change the state.
    """

    kind: str
    at: str


class SubmitEvent(ChainEvent):
    """A script is being submitted. Its first job may start before the scheduler answers."""

    kind: Literal["submit"] = "submit"
    words: Texts = ()
    jobs: Natural


class SubmittedEvent(ChainEvent):
    """The scheduler accepted the script and returned the id ``chain``."""

    kind: Literal["submitted"] = "submitted"
    chain: Job


class RefusedEvent(ChainEvent):
    """The scheduler refused the script. The state before the submission is restored."""

    kind: Literal["refused"] = "refused"
    why: str


class BeganEvent(ChainEvent):
    """A job starts its first or a later attempt."""

    kind: Literal["began"] = "began"
    job: Job
    attempt: Natural
    nodes: Texts
    tokens: Natural


class QueuedEvent(ChainEvent):
    """A job has queued its successor, or could not. Only PBS: it has no arrays for chains."""

    kind: Literal["queued"] = "queued"
    job: Job
    successor: Job | None
    why: str = ""


class EndedEvent(ChainEvent):
    """A job records how it ended."""

    kind: Literal["ended"] = "ended"
    job: Job
    attempt: Natural
    tokens: Natural
    ended: str
    why: str = ""
    bad_nodes: Texts = ()
    failed_nodes: Texts = ()
    bad_step: Natural | None = None


class LostEvent(ChainEvent):
    """The end of a job that could not record it. The next job writes this event."""

    kind: Literal["lost"] = "lost"
    job: Job
    attempt: Natural
    fate: Fate


class ExcludedEvent(ChainEvent):
    """The waiting jobs avoid ``nodes`` until the time ``until`` at the latest."""

    kind: Literal["excluded"] = "excluded"
    nodes: Texts
    until: str
    why: str = ""


class ReadmittedEvent(ChainEvent):
    """The waiting jobs may use ``nodes`` again."""

    kind: Literal["readmitted"] = "readmitted"
    nodes: Texts
    why: str


class CancelledEvent(ChainEvent):
    """The user has cancelled the chain."""

    kind: Literal["cancelled"] = "cancelled"


class ReopenedEvent(ChainEvent):
    """The user continues the tree of a run. ``words`` override earlier words by key."""

    kind: Literal["reopened"] = "reopened"
    words: Texts


class OverEvent(ChainEvent):
    """The chain is over for the reason ``why``: no further job has work to do."""

    kind: Literal["over"] = "over"
    why: str


KINDS: Mapping[str, type[ChainEvent]] = {
    str(event.model_fields["kind"].default): event for event in ChainEvent.__subclasses__()
}


@dataclass(frozen=True, kw_only=True)
class JobAttempt:
    """One attempt of one job, with its end if known."""

    job: str
    attempt: int
    nodes: tuple[str, ...]
    began_at: str
    tokens_at_begin: int
    ended_at: str | None = None
    tokens_at_end: int | None = None
    ended: str | None = None  # stopped, finished, failed; lost if another job recorded the end
    why: str = ""
    bad_nodes: tuple[str, ...] = ()
    failed_nodes: tuple[str, ...] = ()  # where it failed first, at fault or not
    bad_step: int | None = None  # step with non-finite values
    fate: Fate | None = None

    @property
    def failed_by_itself(self) -> bool:
        """Whether the run, not the machine, is to blame if the attempt saved nothing."""
        return self.fate is None or self.fate in OWN_FATES


@dataclass(frozen=True, kw_only=True)
class ChainState:
    """State of a chain after all its events."""

    submissions: tuple[tuple[str | None, int], ...] = ()  # (id if known, number of jobs)
    words: tuple[str, ...] = ()  # of the last submission
    attempts: tuple[JobAttempt, ...] = ()
    first: int = 0  # number of attempts of earlier submissions
    successor: str | None = None
    unqueued: str = ""  # why there is no successor
    avoided: Mapping[str, str] = field(default_factory=dict)  # node: until when; oldest first
    cancelled: bool = False
    over: str = ""
    before: "ChainState | None" = None  # restored if the scheduler refuses
    last: ChainEvent | None = None

    @property
    def current_attempts(self) -> tuple[JobAttempt, ...]:
        """The attempts since the last submission."""
        return self.attempts[self.first :]

    @property
    def open_attempt(self) -> JobAttempt | None:
        """The newest attempt if it has no recorded end."""
        newest = self.current_attempts[-1] if self.current_attempts else None
        return newest if newest is not None and newest.ended is None else None

    def newest_of(self, job: str | None) -> JobAttempt:
        """Return the newest attempt of ``job``, or of any job if ``job`` has no attempt."""
        matching = [attempt for attempt in self.attempts if attempt.job == job]
        return (matching or self.attempts)[-1]

    @property
    def jobs_left(self) -> int | None:
        """Return the number of jobs not started; None if jobs are submitted by hand."""
        if not self.submissions:
            return None
        started = {attempt.job for attempt in self.current_attempts}
        return max(0, self.submissions[-1][1] - len(started))

    @property
    def job_ids(self) -> list[str]:
        """Return the ids by which a scheduler finds the chain, starting with the newest job.

        PBS forgets ended jobs, immediately on sites that keep no history.
        """
        if self.current_attempts:
            named = [self.current_attempts[-1].job, self.successor]
            return list(dict.fromkeys(chain_of(job) for job in named if job is not None))
        submitted = self.submissions[-1][0] if self.submissions else None
        return [] if submitted is None else [submitted]

    def apply_events(self, *events: ChainEvent) -> "ChainState":
        """Return the state after ``events``."""
        chain = self
        for event in events:
            change = _TRANSITIONS.get(event.kind)
            chain = replace(change(chain, event) if change else chain, last=event)
        return chain


def _submit(chain: ChainState, event: SubmitEvent) -> ChainState:
    return ChainState(
        submissions=(*chain.submissions, (None, event.jobs)),
        words=event.words,
        attempts=chain.attempts,
        first=len(chain.attempts),
        before=replace(chain, before=None),
    )


def _submitted(chain: ChainState, event: SubmittedEvent) -> ChainState:
    *others, (_, jobs) = chain.submissions or ((None, 0),)
    return replace(chain, submissions=(*others, (event.chain, jobs)), before=None)


def _began(chain: ChainState, event: BeganEvent) -> ChainState:
    attempt = JobAttempt(
        job=event.job,
        attempt=event.attempt,
        nodes=event.nodes,
        began_at=event.at,
        tokens_at_begin=event.tokens,
    )
    # A job that relaunches its ranks queues no second successor, so `unqueued` stays valid.
    again = bool(chain.current_attempts) and chain.current_attempts[-1].job == event.job
    return replace(
        chain,
        attempts=(*chain.attempts, attempt),
        successor=None if event.job == chain.successor else chain.successor,
        unqueued=chain.unqueued if again else "",
    )


def _closed(chain: ChainState, event: EndedEvent | LostEvent) -> ChainState:
    """Set the end of an attempt."""
    end: dict[str, Any]
    if isinstance(event, LostEvent):
        end = {"ended": "lost", "why": FATES[event.fate], "fate": event.fate}
    else:
        end = event.model_dump(exclude={"kind", "at", "job", "attempt", "tokens"})
        end["tokens_at_end"] = event.tokens
    attempts = tuple(
        replace(attempt, ended_at=event.at, **end)
        if (attempt.job, attempt.attempt) == (event.job, event.attempt)
        else attempt
        for attempt in chain.attempts
    )
    return replace(chain, attempts=attempts)


def _readmitted(chain: ChainState, event: ExcludedEvent | ReadmittedEvent) -> ChainState:
    avoided = {node: end for node, end in chain.avoided.items() if node not in event.nodes}
    return replace(chain, avoided=avoided)


def _excluded(chain: ChainState, event: ExcludedEvent) -> ChainState:
    without = _readmitted(chain, event).avoided
    return replace(chain, avoided={**without, **dict.fromkeys(event.nodes, event.until)})


def _reopened(chain: ChainState, event: ReopenedEvent) -> ChainState:
    words = {word.partition("=")[0]: word for word in (*chain.words, *event.words)}
    return replace(chain, cancelled=False, words=tuple(words.values()))


_TRANSITIONS: Mapping[str, Callable[[ChainState, Any], ChainState]] = {
    "submit": _submit,
    "submitted": _submitted,
    "refused": lambda chain, _: chain.before or chain,
    "began": _began,
    "queued": lambda chain, event: replace(
        chain, successor=event.successor, unqueued=event.why
    ),
    "ended": _closed,
    "lost": _closed,
    "excluded": _excluded,
    "readmitted": _readmitted,
    "cancelled": lambda chain, _: replace(chain, cancelled=True),
    "reopened": _reopened,
    "over": lambda chain, event: replace(chain, over=event.why),
}
_TEXTS = {
    "submit": "submission of the script started",
    "submitted": "submitted as {chain}",
    "refused": "the scheduler rejected the script: {why}",
    "began": "job {job}{again} began at {tokens:,} tokens",
    "queued": "job {job} queued the next job {successor}",
    "ended": "job {job} {ended} at {tokens:,} tokens{because}",
    "lost": "job {job} {fate}",
    "excluded": "nodes were excluded: {nodes}",
    "readmitted": "nodes were readmitted: {nodes}: {why}",
    "cancelled": "the user cancelled it",
    "reopened": "the user continued the tree",
    "over": "the chain ended: {why}",
}
_NOT_QUEUED = "job {job} could not queue the next job: {why}"


def event_text(event: ChainEvent) -> str:
    """Describe an event in words."""
    tree = event.model_dump()
    text = _NOT_QUEUED if tree.get("successor", "") is None else _TEXTS.get(event.kind)
    tree["again"] = f", attempt {tree['attempt']}," if tree.get("attempt") else ""
    tree["because"] = f": {tree['why']}" if tree.get("why") else ""
    tree["nodes"] = ", ".join(tree.get("nodes", ()))
    tree["fate"] = FATES.get(tree.get("fate", ""))
    return event.kind if text is None else text.format_map(tree)


def chain_of(job: str) -> str:
    """Return the chain id of a job. Array tasks are named ``ID_NUMBER``."""
    return job.partition("_")[0]
