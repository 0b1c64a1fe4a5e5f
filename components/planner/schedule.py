"""Pipeline schedules: the order of passes on each rank, and the bubble.

p ranks, m microbatches, v stages a rank; the backward pass takes twice the forward pass.

The orders are those that torch.distributed.pipelining makes, which the mesh engine runs; tests
compare them action by action. Which stages a rank has, and where gradients of weights come
apart, says `components.config.stages`.

In a V, ZBV and DualPipeV, rank r of p has the stages r and 2 p - 1 - r, here called 0 and 1. A
pass goes through one of them: F forward, B backward, I backward to the stage's input alone, W
to its weights. Each stage takes its microbatches in turn, so the order says which is meant.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from components.config.schema.sections import Parallelism
from components.config.stages import V_SCHEDULES, StagePlacement

# A pass in these letters, the number of its microbatch, and whether the next pass overlaps it.
Numbered = tuple[str, int, bool]


def bubble_fraction(
    layout: Parallelism, microbatches: int, *, splits_backward: bool = True
) -> float:
    """Return the ideal bubble of a layout's schedule.

    (p - 1) / m for GPipe (Huang et al. 2019, arXiv 1811.06965, section 2.3) and 1F1B, which
    only keeps less (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1); divided by v
    interleaved (section 2.2.2). Zero bubble fills two thirds of the rest with weight gradients:
    (p - 1) / 3 m (Qi et al. 2023, arXiv 2401.10241, table 2, ZB-H1, with t_F = t_B = t_W);
    where the backward pass stays whole it is as interleaved.
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
    """Count the forward passes of one stage for which a rank of a V waits.

    ZBV: what is left of its zero is the way of the first microbatch to the last rank (section 6
    of the same paper), or two for each that is missing of those that fill it. DualPipeV:
    (p - 1) (F&B + B - 3 W) as in DeepSeek-V3's table 2 (arXiv 2412.19437), F&B = F + B as torch
    runs one after the other. For whole backward passes, of which no paper speaks, `simulate`
    counts.
    """
    if schedule == "dualpipev":
        return 2 * (pipeline - 1) if splits_backward else 5 * pipeline - 6
    if not splits_backward:
        return 4 * (pipeline - 1)
    return max(pipeline - 1, 2 * (2 * pipeline - 1 - microbatches))


Kind = Literal["forward", "backward", "input", "weights"]


class Action(NamedTuple):
    """One pass of one microbatch through one stage.

    ``backward`` is all of the backward pass, ``input`` the gradient of the stage's input alone;
    that of its weights is then ``weights``. What is ``overlapped`` is sent after the next pass.
    """

    kind: Kind
    stage: int
    microbatch: int
    overlapped: bool = False


Order = tuple[Action, ...]


def orders(
    layout: Parallelism, microbatches: int, *, splits_backward: bool = True
) -> tuple[Order, ...]:
    """List the actions of each pipeline rank.

    GPipe: Huang et al. 2019 (arXiv 1811.06965, section 2.3). 1F1B and interleaved: Narayanan et
    al. 2021 (arXiv 2104.04473, section 2.2). Zero bubble: ZB-H1 of Qi et al. 2023 (arXiv
    2401.10241, section 3), with 1F1B's warm-up and each weight gradient later by the rank.
    Without ``splits_backward`` passes are whole where their first half would be.
    """
    schedule, pipeline = layout.schedule, layout.pipeline
    if schedule in V_SCHEDULES:
        found = [_in_a_v(schedule, rank, pipeline, microbatches) for rank in range(pipeline)]
    else:
        stages = StagePlacement.of(layout).stages_per_rank
        found = _in_a_loop(schedule, pipeline, microbatches, stages)
    return tuple(found if splits_backward else map(_with_whole_passes, found))


def _with_whole_passes(order: Order) -> Order:
    return tuple(
        action._replace(kind="backward") if action.kind == "input" else action
        for action in order
        if action.kind != "weights"
    )


def _in_a_v(schedule: str, rank: int, pipeline: int, microbatches: int) -> Order:
    here = StagePlacement(pipeline=pipeline, stages_per_rank=2, style="v").stages_of(rank)
    return tuple(
        Action(_KINDS[name[0]], here[int(name[1])], number, overlapped)
        for name, number, overlapped in PASSES[schedule](rank, pipeline, microbatches)
    )


_KINDS: Mapping[str, Kind] = {"F": "forward", "B": "backward", "I": "input", "W": "weights"}


def _in_a_loop(schedule: str, pipeline: int, microbatches: int, stages: int) -> list[Order]:
    in_round = microbatches if stages == 1 else round_microbatches(pipeline, microbatches)
    # Ranks of the interleaved schedule begin twice as far ahead of the next as the others'.
    lead = 2 if schedule == "interleaved" else 1
    back: Kind = "input" if schedule == "zero_bubble" else "backward"
    found = []
    for rank in range(pipeline):
        ahead = (stages - 1) * in_round + lead * (pipeline - 1 - rank)
        order = _alternating(
            forward=_passes("forward", rank, pipeline, microbatches, stages, in_round),
            backward=_passes(back, rank, pipeline, microbatches, stages, in_round),
            warmup=microbatches if schedule == "gpipe" else ahead,
            delay=rank if schedule == "zero_bubble" else None,
        )
        found.append(order)
    return found


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
    """Count the stages' microbatches that a rank has gone forward with and not yet ended.

    They end with their weights' gradient where that comes apart, because the graph that it
    needs lives so long.
    """
    now = most = 0
    for action in order:
        now += (action.kind == "forward") - (action.kind in {"backward", "weights"})
        most = max(most, now)
    return most


def zbv(rank: int, pipeline: int, microbatches: int) -> Iterator[Numbered]:
    """List the passes of one rank (Qi et al. 2023, arXiv 2401.10241, section 6).

    Two microbatches a rank, less one, fill the pipeline; with fewer their places are empty.
    """
    later = pipeline - rank
    filled = max(microbatches, 2 * pipeline - 1)
    passes = ["F0"] * (2 * later - 1) + ["F1", "F0"] * rank + ["F1", "I1", "W1"] * later
    left = filled - passes.count("F0")
    for turn in range(filled - pipeline):
        passes += ["F0"] * (turn < left) + ["I0", "W0", "F1", "I1", "W1"]
    passes += ["I0", "I1"] * rank + ["I0", "W0"] * later + ["W1"] * rank + ["W0"] * rank
    return (one for one in _number(passes) if one[1] < microbatches)


def dualpipev(rank: int, pipeline: int, microbatches: int) -> Iterator[Numbered]:
    """List the passes of one rank (DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1).

    As in github.com/deepseek-ai/DualPipe, in whose eight parts ``&`` stands for two passes that
    overlap. Half of the last backward passes are split, and what waits is done as W.
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
    """Count each stage's microbatches; a W without a stage is that of the oldest I."""
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
    "zbv": zbv,
    "dualpipev": dualpipev,
}
