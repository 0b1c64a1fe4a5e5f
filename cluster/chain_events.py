"""What happens to a chain of jobs: the lines of ``jobs/chain.jsonl``, the one record of it.

They are in the order in which they were told. Each knows what it changes, and its words.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from cluster.chain import FATES, ChainState, Fate, JobAttempt
from components.run.records import Natural, RunRecord, Texts

Job = Annotated[str, Field(pattern=r"^[^/\x00]*$")]  # a part of files' names


class ChainEvent(RunRecord):
    """What every line has: ``at`` is UTC, and such texts sort by time.

    A kind that only a newer version knows changes nothing here.
    """

    kind: str
    at: str

    def change(self, chain: ChainState) -> ChainState:
        """Return the chain after this event."""
        return chain

    @property
    def text(self) -> str:
        """The event in words."""
        return self.kind


class SubmitEvent(ChainEvent):
    """A script is handed over; its first job may begin before the scheduler has answered."""

    kind: Literal["submit"] = "submit"
    words: Texts = ()
    jobs: Natural

    def change(self, chain: ChainState) -> ChainState:
        return ChainState(
            submissions=(*chain.submissions, (None, self.jobs)),
            words=self.words,
            attempts=chain.attempts,
            first=len(chain.attempts),
            before=replace(chain, before=None),
        )

    @property
    def text(self) -> str:
        return "its script was being handed over"


class SubmittedEvent(ChainEvent):
    """The scheduler took it, by this id."""

    kind: Literal["submitted"] = "submitted"
    chain: Job

    def change(self, chain: ChainState) -> ChainState:
        *others, (_, jobs) = chain.submissions or ((None, 0),)
        return replace(chain, submissions=(*others, (self.chain, jobs)), before=None)

    @property
    def text(self) -> str:
        return f"submitted as {self.chain}"


class RefusedEvent(ChainEvent):
    """The scheduler did not take it: nothing has changed."""

    kind: Literal["refused"] = "refused"
    why: str

    def change(self, chain: ChainState) -> ChainState:
        return chain.before or chain

    @property
    def text(self) -> str:
        return f"the scheduler refused it: {self.why}"


class BeganEvent(ChainEvent):
    """A job begins, for the first time or again."""

    kind: Literal["began"] = "began"
    job: Job
    attempt: Natural
    nodes: Texts
    tokens: Natural

    def change(self, chain: ChainState) -> ChainState:
        begun = JobAttempt(
            job=self.job,
            attempt=self.attempt,
            nodes=self.nodes,
            began_at=self.at,
            tokens_at_begin=self.tokens,
        )
        waits = None if self.job == chain.successor else chain.successor
        # A job that launches its ranks again queues no other: what it said of that still holds.
        again = bool(chain.current) and chain.current[-1].job == self.job
        unqueued = chain.unqueued if again else ""
        attempts = (*chain.attempts, begun)
        return replace(chain, attempts=attempts, successor=waits, unqueued=unqueued)

    @property
    def text(self) -> str:
        again = f", attempt {self.attempt}," if self.attempt else ""
        return f"job {self.job}{again} began at {self.tokens:,} tokens"


class QueuedEvent(ChainEvent):
    """A job has queued the one after it, or could not: PBS has no arrays of such jobs."""

    kind: Literal["queued"] = "queued"
    job: Job
    successor: Job | None
    why: str = ""

    def change(self, chain: ChainState) -> ChainState:
        return replace(chain, successor=self.successor, unqueued=self.why)

    @property
    def text(self) -> str:
        if self.successor is None:
            return f"job {self.job} could queue no other: {self.why}"
        return f"job {self.job} queued {self.successor} behind it"


class EndedEvent(ChainEvent):
    """A job tells how it ended."""

    kind: Literal["ended"] = "ended"
    job: Job
    attempt: Natural
    tokens: Natural
    ended: str
    why: str = ""
    bad_nodes: Texts = ()
    failed_nodes: Texts = ()
    bad_step: Natural | None = None

    def change(self, chain: ChainState) -> ChainState:
        return chain.closed(
            self.job,
            self.attempt,
            ended_at=self.at,
            tokens_at_end=self.tokens,
            ended=self.ended,
            why=self.why,
            bad_nodes=self.bad_nodes,
            failed_nodes=self.failed_nodes,
            bad_step=self.bad_step,
        )

    @property
    def text(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"job {self.job} {self.ended} at {self.tokens:,} tokens{why}"


class LostEvent(ChainEvent):
    """A job could not tell how it ended: who comes after it does."""

    kind: Literal["lost"] = "lost"
    job: Job
    attempt: Natural
    fate: Fate

    def change(self, chain: ChainState) -> ChainState:
        end = {"ended": "lost", "ended_at": self.at, "fate": self.fate}
        return chain.closed(self.job, self.attempt, why=FATES[self.fate], **end)

    @property
    def text(self) -> str:
        return f"job {self.job} {FATES[self.fate]}"


class ExcludedEvent(ChainEvent):
    """The jobs that wait are kept off nodes, until then at the latest."""

    kind: Literal["excluded"] = "excluded"
    nodes: Texts
    until: str
    why: str = ""

    def change(self, chain: ChainState) -> ChainState:
        new = dict.fromkeys(self.nodes, self.until)
        return replace(chain, avoided=chain.without(self.nodes) | new)

    @property
    def text(self) -> str:
        return f"nodes were excluded: {', '.join(self.nodes)}"


class ReadmittedEvent(ChainEvent):
    """They may use these nodes again."""

    kind: Literal["readmitted"] = "readmitted"
    nodes: Texts
    why: str

    def change(self, chain: ChainState) -> ChainState:
        return replace(chain, avoided=chain.without(self.nodes))

    @property
    def text(self) -> str:
        return f"nodes were readmitted: {', '.join(self.nodes)}: {self.why}"


class CancelledEvent(ChainEvent):
    """A person has taken the chain back."""

    kind: Literal["cancelled"] = "cancelled"

    def change(self, chain: ChainState) -> ChainState:
        return replace(chain, cancelled=True)

    @property
    def text(self) -> str:
        return "its user cancelled it"


class ReopenedEvent(ChainEvent):
    """A person continues the tree of a run; ``words`` replace those of the same keys."""

    kind: Literal["reopened"] = "reopened"
    words: Texts

    def change(self, chain: ChainState) -> ChainState:
        words = {word.partition("=")[0]: word for word in (*chain.words, *self.words)}
        return replace(chain, cancelled=False, words=tuple(words.values()))

    @property
    def text(self) -> str:
        return "its user continued its tree"


class OverEvent(ChainEvent):
    """No further job has anything to do, for this reason."""

    kind: Literal["over"] = "over"
    why: str

    def change(self, chain: ChainState) -> ChainState:
        return replace(chain, over=self.why)

    @property
    def text(self) -> str:
        return f"the chain ended: {self.why}"


KINDS: Mapping[str, type[ChainEvent]] = {
    str(one.model_fields["kind"].default): one for one in ChainEvent.__subclasses__()
}
