"""Timeline of a step: passes and waits of each pipeline rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from components.planner.schedule import Action, PassKind, RankActions, most_in_flight


class TimelineBlock(NamedTuple):
    """One pass in the timeline, in seconds from the start of the step."""

    kind: PassKind
    stage: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class PassSeconds:
    """Seconds of one microbatch in one stage. ``backward`` includes ``weights``."""

    forward: float
    backward: float
    weights: float = 0.0

    @property
    def input(self) -> float:
        return self.backward - self.weights


@dataclass(frozen=True, kw_only=True)
class RankLine:
    """One pipeline rank; ``in_flight``: its maximum of microbatches with a live graph."""

    blocks: tuple[TimelineBlock, ...]
    in_flight: float

    @property
    def busy_seconds(self) -> float:
        return sum(block.end - block.start for block in self.blocks)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """All pipeline ranks, from the first forward pass to the last backward pass."""

    ranks: tuple[RankLine, ...]

    @property
    def total_seconds(self) -> float:
        return max(line.blocks[-1].end for line in self.ranks)

    def waiting_fraction(self, rank: int) -> float:
        """Return the fraction of ``seconds`` in which a rank is idle."""
        return 1 - self.ranks[rank].busy_seconds / self.total_seconds


def simulate_step(listed: Sequence[RankActions], seconds: Sequence[PassSeconds]) -> Timeline:
    """Schedule every action as early as its rank and its dependencies allow.

    ``listed`` has the order of each rank, ``seconds`` the times of each stage. Messages are
    part of a pass's seconds, and block nothing.
    """
    ended: Ended = {}
    lines: list[tuple[RankActions, list[TimelineBlock]]] = [(order, []) for order in listed]
    while any(len(blocks) < len(order) for order, blocks in lines):
        before = sum(len(blocks) for _, blocks in lines)
        # Ascending for forward passes, descending for backward passes.
        for order, blocks in (*lines, *reversed(lines)):
            _advance(order, blocks, ended, seconds)
        after = sum(len(blocks) for _, blocks in lines)
        assert after > before, "the orders wait for each other"
    stages_per_rank = len(seconds) // len(listed)
    return Timeline(
        ranks=tuple(
            RankLine(blocks=tuple(blocks), in_flight=most_in_flight(order) / stages_per_rank)
            for order, blocks in lines
        )
    )


# Time at which a pass's result is available, by (is forward, stage, microbatch).
Ended = dict[tuple[bool, int, int], float]


def _advance(
    order: RankActions,
    blocks: list[TimelineBlock],
    ended: Ended,
    seconds: Sequence[PassSeconds],
) -> None:
    """Schedule actions of one rank until an action has to wait for another rank."""
    free = blocks[-1].end if blocks else 0.0
    for place in range(len(blocks), len(order)):
        action = order[place]
        ready = _ready(action, ended, last=len(seconds) - 1)
        if ready is None:
            return
        start = max(ready, free)
        free = start + getattr(seconds[action.stage], action.kind)
        blocks.append(TimelineBlock(*action[:3], start, free))
        for done in order[max(place - 1, 0) : place + 1]:
            if done.kind != "weights" and (done.overlapped != (done is action)):
                ended[done.kind == "forward", done.stage, done.microbatch] = free


def _ready(action: Action, ended: Ended, *, last: int) -> float | None:
    """Return the time when the action's input is available, or ``None`` if not yet known."""
    kind, stage, number, _ = action
    if kind == "forward":
        return 0.0 if stage == 0 else ended.get((True, stage - 1, number))
    if kind == "weights":
        return ended.get((False, stage, number))
    if stage == last:
        return ended.get((True, stage, number))
    return ended.get((False, stage + 1, number))
