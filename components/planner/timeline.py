"""The timeline of a step: when each rank of a pipeline passes which microbatch, and waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from components.planner.schedule import Action, Kind, Order, most_in_flight


class TimelineBlock(NamedTuple):
    """One pass on the clock of the step, in seconds from its start."""

    kind: Kind
    stage: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class PassSeconds:
    """Seconds of one microbatch in one stage; ``weights`` are a part of ``backward``."""

    forward: float
    backward: float
    weights: float = 0.0

    @property
    def input(self) -> float:
        return self.backward - self.weights


@dataclass(frozen=True, kw_only=True)
class RankLine:
    """One pipeline rank; ``in_flight`` is the most microbatches whose graphs it keeps."""

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
    def seconds(self) -> float:
        return max(line.blocks[-1].end for line in self.ranks)

    def waiting_fraction(self, rank: int) -> float:
        """Return the part of ``seconds`` in which a rank computes nothing."""
        return 1 - self.ranks[rank].busy_seconds / self.seconds


def simulate(listed: Sequence[Order], seconds: Sequence[PassSeconds]) -> Timeline:
    """Place every action as early as its rank and what it needs allow.

    ``listed`` has the order of each rank, ``seconds`` those of each stage. A pass begins when
    its rank is free and what it needs is there: a forward pass needs the one of the stage
    before, a backward pass the one of the stage after, and the last stage's its own forward
    pass. Messages are part of a pass's seconds, as in ``rank_seconds``, and block nobody.
    """
    ended: Ended = {}
    lines: list[tuple[Order, list[TimelineBlock]]] = [(order, []) for order in listed]
    while any(len(blocks) < len(order) for order, blocks in lines):
        before = sum(len(blocks) for _, blocks in lines)
        # Up for what goes forward, down for what comes back.
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


# When what a stage has of a microbatch is there: whether it goes forward, stage, microbatch.
Ended = dict[tuple[bool, int, int], float]


def _advance(
    order: Order,
    blocks: list[TimelineBlock],
    ended: Ended,
    seconds: Sequence[PassSeconds],
) -> None:
    """Place actions of one rank until one has to wait for another rank."""
    free = blocks[-1].end if blocks else 0.0
    for place in range(len(blocks), len(order)):
        action = order[place]
        ready = _ready(action, ended, last=len(seconds) - 1)
        if ready is None:
            return
        start = max(ready, free)
        free = start + getattr(seconds[action.stage], action.kind)
        blocks.append(TimelineBlock(*action[:3], start, free))
        for one in order[max(place - 1, 0) : place + 1]:
            if one.kind != "weights" and (one.overlapped != (one is action)):
                ended[one.kind == "forward", one.stage, one.microbatch] = free


def _ready(action: Action, ended: Ended, *, last: int) -> float | None:
    """Return when what the action needs is there; ``None`` where nobody knows yet."""
    kind, stage, number, _ = action
    if kind == "forward":
        return 0.0 if stage == 0 else ended.get((True, stage - 1, number))
    if kind == "weights":
        return ended.get((False, stage, number))
    if stage == last:
        return ended.get((True, stage, number))
    return ended.get((False, stage + 1, number))
