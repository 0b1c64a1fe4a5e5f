"""Pipeline schedules: the order of passes on each rank, and the bubble.

Notation: p ranks, m microbatches, v stages per rank. The backward pass takes twice as long as
the forward pass. The orders are as in torch.distributed.pipelining; tests compare them.
`components.config.stages` defines ranks' stages, and schedules that split weight gradients.

In the V schedules ZBV and DualPipeV, rank r of p has the stages r and 2 p - 1 - r, here called
0 and 1. A pass goes through one stage: F is forward, B backward, I backward for the stage's
input only, W backward for its weights. The position of a pass determines its microbatch.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from components.config.schema.sections import Parallelism
from components.config.stages import V_SCHEDULES, StagePlacement

# Pass in these letters, number of its microbatch, and whether the next pass overlaps it.
Numbered = tuple[str, int, bool]


def bubble_fraction(
    layout: Parallelism, microbatches: int, *, splits_backward: bool = True
) -> float:
    """Return the ideal bubble of a layout's schedule as a fraction of compute time.

    (p - 1) / m for GPipe (Huang et al. 2019, arXiv 1811.06965, section 2.3) and for 1F1B
    (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1). Interleaved divides it by v
    (section 2.2.2). Zero bubble fills two thirds of the rest with weight gradients: (p - 1) / 3
    m (Qi et al. 2023, arXiv 2401.10241, table 2, ZB-H1, with t_F = t_B = t_W). With whole
    backward passes it equals interleaved.
    """
    schedule, pipeline = layout.schedule, layout.pipeline
    if pipeline == 1:
        return 0.0
    if schedule in V_SCHEDULES:
        waits = _v_bubble(schedule, pipeline, microbatches, splits_backward)
        return waits / (6 * microbatches)
    fraction = (pipeline - 1) / microbatches
    if schedule not in {"interleaved", "zero_bubble"}:
        return fraction
    thirds = 3 if schedule == "zero_bubble" and splits_backward else 1
    return fraction / (thirds * layout.stages_per_rank)


def _v_bubble(schedule: str, pipeline: int, microbatches: int, splits_backward: bool) -> int:
    """Count how long a rank of a V schedule waits, in forward passes of one stage.

    ZBV: the first microbatch has to reach the last rank (section 6 of the same paper), and each
    microbatch that is missing to fill the pipeline costs two passes. DualPipeV: (p - 1) (F&B +
    B - 3 W) as in DeepSeek-V3's table 2 (arXiv 2412.19437), with F&B = F + B because torch runs
    one after the other. Whole backward passes: from `simulate_step`; no paper covers them.
    """
    if schedule == "dualpipev":
        return 2 * (pipeline - 1) if splits_backward else 5 * pipeline - 6
    if not splits_backward:
        return 4 * (pipeline - 1)
    return max(pipeline - 1, 2 * (2 * pipeline - 1 - microbatches))


PassKind = Literal["forward", "backward", "input", "weights"]


class Action(NamedTuple):
    """One pass of one microbatch through one stage.

    ``backward`` is the whole backward pass, ``input`` its gradient of the stage's input only,
    and ``weights`` the rest. The result of an ``overlapped`` pass is sent after the next pass.
    """

    kind: PassKind
    stage: int
    microbatch: int
    overlapped: bool = False


RankActions = tuple[Action, ...]


def list_actions(
    layout: Parallelism, microbatches: int, *, splits_backward: bool = True
) -> tuple[RankActions, ...]:
    """List the actions of each pipeline rank.

    GPipe: Huang et al. 2019 (arXiv 1811.06965, section 2.3). 1F1B and interleaved: Narayanan et
    al. 2021 (arXiv 2104.04473, section 2.2). Zero bubble: ZB-H1 of Qi et al. 2023 (arXiv
    2401.10241, section 3), with 1F1B's warm-up and each weight gradient delayed by the rank's
    number. Without ``splits_backward``, a whole backward pass replaces each input pass.
    """
    schedule, pipeline = layout.schedule, layout.pipeline
    if schedule in V_SCHEDULES:
        rank_orders = [
            _in_a_v(schedule, rank, pipeline, microbatches) for rank in range(pipeline)
        ]
    else:
        stages = StagePlacement.from_degrees(layout).stages_per_rank
        rank_orders = _in_a_loop(schedule, pipeline, microbatches, stages)
    return tuple(rank_orders if splits_backward else map(_with_whole_passes, rank_orders))


def _with_whole_passes(order: RankActions) -> RankActions:
    return tuple(
        action._replace(kind="backward") if action.kind == "input" else action
        for action in order
        if action.kind != "weights"
    )


def _in_a_v(schedule: str, rank: int, pipeline: int, microbatches: int) -> RankActions:
    here = StagePlacement(pipeline=pipeline, stages_per_rank=2, style="v").stages_of(rank)
    return tuple(
        Action(_KINDS[name[0]], here[int(name[1])], number, overlapped)
        for name, number, overlapped in PASSES[schedule](rank, pipeline, microbatches)
    )


_KINDS: Mapping[str, PassKind] = {"F": "forward", "B": "backward", "I": "input", "W": "weights"}


def _in_a_loop(
    schedule: str, pipeline: int, microbatches: int, stages: int
) -> list[RankActions]:
    in_round = microbatches if stages == 1 else round_microbatches(pipeline, microbatches)
    # Consecutive ranks of the interleaved schedule differ by two warm-up passes, of others by
    # one.
    lead = 2 if schedule == "interleaved" else 1
    back: PassKind = "input" if schedule == "zero_bubble" else "backward"
    rank_orders = []
    for rank in range(pipeline):
        ahead = (stages - 1) * in_round + lead * (pipeline - 1 - rank)
        order = _alternating(
            forward=_passes("forward", rank, pipeline, microbatches, stages, in_round),
            backward=_passes(back, rank, pipeline, microbatches, stages, in_round),
            warmup=microbatches if schedule == "gpipe" else ahead,
            delay=rank if schedule == "zero_bubble" else None,
        )
        rank_orders.append(order)
    return rank_orders


def round_microbatches(pipeline: int, microbatches: int) -> int:
    """Return how many microbatches pass one stage of a rank before its next stage's turn.

    This is p, or more if m is not a multiple of p, because all rounds have equal length
    (``number_of_rounds`` in torch.distributed.pipelining.schedules).
    """
    return microbatches // max(1, microbatches // pipeline)


def _passes(
    kind: PassKind, rank: int, pipeline: int, microbatches: int, stages: int, in_round: int
) -> RankActions:
    """List passes in rounds: a round goes through the rank's stages one after the other."""
    turns = range(stages) if kind == "forward" else reversed(range(stages))
    places = [turn * pipeline + rank for turn in turns]
    return tuple(
        Action(kind, stage, first + number)
        for first in range(0, microbatches, in_round)
        for stage in places
        for number in range(in_round)
    )


def _alternating(
    *, forward: RankActions, backward: RankActions, warmup: int, delay: int | None
) -> RankActions:
    """Alternate forward and backward passes after ``warmup``; ``delay`` weight gradients."""
    done: list[Action] = list(forward[:warmup])
    late = [] if delay is None else [action._replace(kind="weights") for action in backward]
    for place, action in enumerate(backward):
        done += forward[warmup + place : warmup + place + 1]
        done.append(action)
        if delay is not None and place >= delay:
            done.append(late[place - delay])
    if delay:
        done += late[-delay:]
    return tuple(done)


def most_in_flight(order: Sequence[Action]) -> int:
    """Return the maximum number of (stage, microbatch) pairs with a live graph on a rank.

    A separate weight gradient needs the graph, so the pair ends with it.
    """
    now = most = 0
    for action in order:
        now += (action.kind == "forward") - (action.kind in {"backward", "weights"})
        most = max(most, now)
    return most


def list_zbv_passes(rank: int, pipeline: int, microbatches: int) -> Iterator[Numbered]:
    """List the passes of one rank in ZBV (Qi et al. 2023, arXiv 2401.10241, section 6).

    2 p - 1 microbatches fill the pipeline. With fewer, the missing ones are skipped.
    """
    later = pipeline - rank
    filled = max(microbatches, 2 * pipeline - 1)
    passes = ["F0"] * (2 * later - 1) + ["F1", "F0"] * rank + ["F1", "I1", "W1"] * later
    forwards = filled - passes.count("F0")
    for turn in range(filled - pipeline):
        passes += ["F0"] * (turn < forwards) + ["I0", "W0", "F1", "I1", "W1"]
    passes += ["I0", "I1"] * rank + ["I0", "W0"] * later + ["W1"] * rank + ["W0"] * rank
    return (entry for entry in _number(passes) if entry[1] < microbatches)


def list_dualpipev_passes(rank: int, pipeline: int, microbatches: int) -> Iterator[Numbered]:
    """List the passes of one rank in DualPipeV (arXiv 2412.19437, section 3.2.1).

    As in github.com/deepseek-ai/DualPipe, which has eight parts; ``&`` marks two passes that
    overlap. Half of the last backward passes are split. Their weight gradients run as W.
    """
    later, last = pipeline - rank - 1, rank == pipeline - 1
    passes = ["F0"] * 2 * later + ["F0", "F1"] * (rank + 1) + ["I1", "W", "F1"] * later
    for turn in range(microbatches - 2 * pipeline + rank + 1):
        passes += ["F0" if last and turn == 0 else "F0&", "B1", "F1&", "B0"]
    passes += ["B1", "F1&", "B0"] * later
    draining = ["B1", "B0"] * (rank + 1)
    passes += draining[: rank + 1] + [name.replace("B", "I") for name in draining[rank + 1 :]]
    passes += ["W", "I0"] * later + ["W"] * (rank + 1)
    return _number(passes)


def _number(passes: Sequence[str]) -> Iterator[Numbered]:
    """Number each stage's microbatches. A W without a stage belongs to the oldest I."""
    done: Counter[str] = Counter()
    waiting: list[tuple[str, int]] = []
    for name in passes:
        if name == "W":
            if waiting:
                stage, number = waiting.pop(0)
                yield f"W{stage}", number, False
            continue
        kind, stage = name[0], name[1]
        counted = f"{'B' if kind == 'I' else kind}{stage}"
        number, done[counted] = done[counted], done[counted] + 1
        if kind == "I":
            waiting.append((stage, number))
        yield f"{kind}{stage}", number, name.endswith("&")


PASSES: Mapping[str, Callable[[int, int, int], Iterator[Numbered]]] = {
    "zbv": list_zbv_passes,
    "dualpipev": list_dualpipev_passes,
}
