"""Pipeline schedules: the order of passes on each rank, their timeline, and the bubble.

p ranks, m microbatches, v stages a rank; the backward pass takes twice the forward pass.

The orders are those that torch.distributed.pipelining makes, which the mesh engine runs; tests
compare them action by action. Where a rank has several stages, stage s is on rank s % p.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


def bubble_fraction(*, schedule: str, pipeline: int, microbatches: int, stages: int) -> float:
    """Return the ideal bubble of a schedule.

    (p - 1) / m for GPipe (Huang et al. 2019, arXiv 1811.06965, section 2.3) and 1F1B, which
    only keeps less (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1); divided by v
    interleaved (section 2.2.2). Zero bubble fills two thirds of the rest with weight gradients:
    (p - 1) / 3 m (Qi et al. 2023, arXiv 2401.10241, table 2, ZB-H1, with t_F = t_B = t_W).
    """
    if pipeline == 1:
        return 0.0
    fraction = (pipeline - 1) / microbatches
    if schedule == "interleaved":
        return fraction / stages
    return fraction / (3 * stages) if schedule == "zero_bubble" else fraction


Kind = Literal["forward", "backward", "weights"]


class Action(NamedTuple):
    """One pass of one microbatch through one stage.

    ``backward`` is all of the backward pass, but for zero bubble that of the stage's input
    alone; that of its weights is then ``weights``.
    """

    kind: Kind
    stage: int
    microbatch: int


Order = tuple[Action, ...]


def orders(
    *, schedule: str, pipeline: int, microbatches: int, stages: int
) -> tuple[Order, ...]:
    """List the actions of each pipeline rank, ``stages`` being those of one rank.

    GPipe: Huang et al. 2019 (arXiv 1811.06965, section 2.3). 1F1B and interleaved: Narayanan et
    al. 2021 (arXiv 2104.04473, section 2.2). Zero bubble: ZB-H1 of Qi et al. 2023 (arXiv
    2401.10241, section 3), with 1F1B's warm-up and each weight gradient later by the rank.
    """
    in_round = microbatches if stages == 1 else round_microbatches(pipeline, microbatches)
    # Ranks of the interleaved schedule begin twice as far ahead of the next as the others'.
    lead = 2 if schedule == "interleaved" else 1
    found = []
    for rank in range(pipeline):
        ahead = (stages - 1) * in_round + lead * (pipeline - 1 - rank)
        order = _alternating(
            forward=_passes("forward", rank, pipeline, microbatches, stages, in_round),
            backward=_passes("backward", rank, pipeline, microbatches, stages, in_round),
            warmup=microbatches if schedule == "gpipe" else ahead,
            delay=rank if schedule == "zero_bubble" else None,
        )
        found.append(order)
    return tuple(found)


def round_microbatches(pipeline: int, microbatches: int) -> int:
    """Return how many microbatches go through one stage of a rank before its next has a turn.

    One a rank; more where they are no multiple of the ranks, as all rounds are equally long
    (``number_of_rounds`` in torch.distributed.pipelining.schedules).
    """
    return microbatches // max(1, microbatches // pipeline)


def _passes(
    kind: Kind, rank: int, pipeline: int, microbatches: int, stages: int, in_round: int
) -> Order:
    """Take a round of microbatches through one of the rank's stages after the other."""
    turns = range(stages) if kind == "forward" else reversed(range(stages))
    places = [turn * pipeline + rank for turn in turns]
    return tuple(
        Action(kind, stage, first + number)
        for first in range(0, microbatches, in_round)
        for stage in places
        for number in range(in_round)
    )


def _alternating(*, forward: Order, backward: Order, warmup: int, delay: int | None) -> Order:
    """Go ``warmup`` forward passes ahead, then one forward and one backward in turn.

    With a ``delay`` the gradients of the weights follow, so many backward passes later.
    """
    done: list[Action] = list(forward[:warmup])
    late = [] if delay is None else [Action("weights", *action[1:]) for action in backward]
    for place, action in enumerate(backward):
        done += forward[warmup + place : warmup + place + 1]
        done.append(action)
        if delay is not None and place >= delay:
            done.append(late[place - delay])
    if delay:
        done += late[-delay:]
    return tuple(done)


def most_in_flight(order: Sequence[Action]) -> int:
    """Count the stages' microbatches that a rank has gone forward with and not yet ended.

    They end with their weights' gradient where that comes apart, because the graph that it
    needs lives so long.
    """
    ends = "weights" if any(action.kind == "weights" for action in order) else "backward"
    now = most = 0
    for action in order:
        now += (action.kind == "forward") - (action.kind == ends)
        most = max(most, now)
    return most


class TimelineBlock(NamedTuple):
    """One pass on the clock of the step, in seconds from its start."""

    kind: Kind
    stage: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class PassSeconds:
    """Seconds of one microbatch in one stage; ``weights`` are apart in zero bubble alone."""

    forward: float
    backward: float
    weights: float = 0.0


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
    ended: dict[Action, float] = {}
    lines: list[tuple[Order, list[TimelineBlock]]] = [(order, []) for order in listed]
    while len(ended) < sum(map(len, listed)):
        before = len(ended)
        # Up for what goes forward, down for what comes back.
        for order, blocks in (*lines, *reversed(lines)):
            _advance(order, blocks, ended, seconds)
        assert len(ended) > before, "the orders wait for each other"
    stages_per_rank = len(seconds) // len(listed)
    return Timeline(
        ranks=tuple(
            RankLine(blocks=tuple(blocks), in_flight=most_in_flight(order) / stages_per_rank)
            for order, blocks in lines
        )
    )


def _advance(
    order: Order,
    blocks: list[TimelineBlock],
    ended: dict[Action, float],
    seconds: Sequence[PassSeconds],
) -> None:
    """Place actions of one rank until one has to wait for another rank."""
    free = blocks[-1].end if blocks else 0.0
    for action in order[len(blocks) :]:
        ready = _ready(action, ended, last=len(seconds) - 1)
        if ready is None:
            return
        start = max(ready, free)
        free = ended[action] = start + getattr(seconds[action.stage], action.kind)
        blocks.append(TimelineBlock(*action, start, free))


def _ready(action: Action, ended: Mapping[Action, float], *, last: int) -> float | None:
    """Return when what the action needs is there; ``None`` where nobody knows yet."""
    kind, stage, number = action
    if kind == "forward":
        return 0.0 if stage == 0 else ended.get(Action("forward", stage - 1, number))
    if kind == "weights":
        return ended.get(Action("backward", stage, number))
    if stage == last:
        return ended.get(Action("forward", stage, number))
    return ended.get(Action("backward", stage + 1, number))
