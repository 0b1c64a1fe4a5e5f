"""Pipeline schedules: the order of passes on each rank, and the bubble.

p ranks, m microbatches, v stages a rank; the backward pass takes twice the forward pass.

The orders are those that torch.distributed.pipelining makes, which the mesh engine runs; tests
compare them action by action. Where a rank has several stages, stage s is on rank s % p.
"""

from collections.abc import Sequence
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
    if schedule == "gpipe":
        return tuple(
            tuple(
                Action(kind, rank, number)
                for kind in ("forward", "backward")
                for number in range(microbatches)
            )
            for rank in range(pipeline)
        )
    in_round = microbatches if stages == 1 else round_microbatches(pipeline, microbatches)
    # Ranks of the interleaved schedule begin twice as far ahead of the next as the others'.
    lead = 2 if schedule == "interleaved" else 1
    return tuple(
        _alternating(
            forward=_passes("forward", rank, pipeline, microbatches, stages, in_round),
            backward=_passes("backward", rank, pipeline, microbatches, stages, in_round),
            warmup=(stages - 1) * in_round + lead * (pipeline - 1 - rank),
            delay=rank if schedule == "zero_bubble" else None,
        )
        for rank in range(pipeline)
    )


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
