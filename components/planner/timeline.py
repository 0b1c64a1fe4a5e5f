"""The pipeline's timeline of one step: what every rank computes when, and where it waits.

A pass begins when its rank is free and what it needs is there: a forward pass needs the one of
the stage before, a backward pass the one of the stage after, and the last stage's its own
forward pass. Messages are part of a pass's seconds, as in ``rank_seconds``, and block nobody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from components.config.schema.cluster import Hardware
from components.planner.job import TrainingJob
from components.planner.schedule import Action, Kind, Order, most_in_flight, orders
from components.planner.software import SoftwareSpeed
from components.planner.time import rank_seconds


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

    def of(self, kind: Kind) -> float:
        return float(getattr(self, kind))


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


def timeline_of(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> Timeline:
    """Simulate one step from the predicted seconds of each stage.

    Raises:
        RecipeError: the profile lacks a figure that the seconds need.
    """
    layout = job.layout
    listed = orders(
        schedule=layout.schedule,
        pipeline=layout.pipeline,
        microbatches=job.microbatches,
        stages=layout.stages_per_rank,
    )
    return simulate(listed, stage_seconds(job, hardware, speed))


def simulate(listed: Sequence[Order], seconds: Sequence[PassSeconds]) -> Timeline:
    """Place every action as early as its rank and what it needs allow.

    ``listed`` has the order of each rank, ``seconds`` those of each stage.
    """
    ended: dict[Action, float] = {}
    blocks: list[list[TimelineBlock]] = [[] for _ in listed]
    lines = list(zip(listed, blocks, strict=True))
    left = sum(len(order) for order in listed)
    while left:
        before = left
        # Up for what goes forward, down for what comes back.
        for order, line in (*lines, *reversed(lines)):
            left -= _advance(order, line, ended, seconds)
        assert left < before, "the orders wait for each other"
    stages_per_rank = len(seconds) // len(listed)
    return Timeline(
        ranks=tuple(
            RankLine(blocks=tuple(line), in_flight=most_in_flight(order) / stages_per_rank)
            for order, line in zip(listed, blocks, strict=True)
        )
    )


def _advance(
    order: Order,
    line: list[TimelineBlock],
    ended: dict[Action, float],
    seconds: Sequence[PassSeconds],
) -> int:
    """Place actions of one rank until one has to wait for another rank; say how many."""
    before = len(line)
    free = line[-1].end if line else 0.0
    for place in range(before, len(order)):
        action = order[place]
        ready = _ready(action, ended, last=len(seconds) - 1)
        if ready is None:
            break
        start = max(ready, free)
        free = ended[action] = start + seconds[action.stage].of(action.kind)
        line.append(TimelineBlock(*action, start, free))
    return len(line) - before


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


def stage_seconds(
    job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed
) -> tuple[PassSeconds, ...]:
    """Divide each rank's seconds among its stages, and those into forward and backward.

    Without recomputation a forward pass is a third of a microbatch, in FLOPs as in
    ``rank_seconds``; the rest, recomputation included, is backward. The weights' gradient is
    the second half of a backward pass that recomputes nothing (Qi et al. 2023, arXiv
    2401.10241, section 2.2, takes the three for equal).
    """
    layout = job.layout
    plain = replace(job, recompute="none")
    parts = []
    for stage, share in enumerate(_shares(job, hardware, speed)):
        rank = stage % layout.pipeline
        forward = share * rank_seconds(plain, rank, hardware, speed) / 3
        backward = share * rank_seconds(job, rank, hardware, speed) - forward
        weights = forward if layout.schedule == "zero_bubble" else 0.0
        parts.append(PassSeconds(forward=forward, backward=backward - weights, weights=weights))
    return tuple(parts)


def _shares(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> list[float]:
    """Weigh the stages of each rank as though each stage had a rank of its own."""
    layout = job.layout
    count = len(layout.layers)
    if count == layout.pipeline:
        return [1.0] * count
    alone = replace(job, layout=replace(layout, pipeline=count, stages_per_rank=1))
    weights = [rank_seconds(alone, stage, hardware, speed) for stage in range(count)]
    return [
        weight / sum(weights[stage % layout.pipeline :: layout.pipeline])
        for stage, weight in enumerate(weights)
    ]
