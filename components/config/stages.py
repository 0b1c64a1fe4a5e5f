"""Pipeline stages: their ranks, their layers, and whether the backward pass is split.

In a loop stage s is on rank s % p. In a V (Qi et al. 2023, arXiv 2401.10241, section 6) rank r
has the stages r and 2 p - 1 - r. The first and the last stage are on rank 0, which has
embedding, head and loss. Consecutive stages on the same rank send no message.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations
from typing import Literal

from components.config.schema.sections import Parallelism
from components.config.schema.types import Balance
from components.errors import RecipeError

V_SCHEDULES = frozenset({"zbv", "dualpipev"})
SPLIT_SCHEDULES = V_SCHEDULES | {"zero_bubble"}
"""Schedules that compute input gradients and weight gradients of a stage separately."""

Style = Literal["loop", "v"]


@dataclass(frozen=True, kw_only=True)
class StagePlacement:
    """Placement of stages on ``pipeline`` ranks, each with ``stages_per_rank`` stages."""

    pipeline: int
    stages_per_rank: int
    style: Style

    @classmethod
    def from_degrees(cls, degrees: Parallelism) -> "StagePlacement":
        """Return the placement for the degrees of a recipe; one stage without a pipeline."""
        pipeline = degrees.pipeline
        stages = degrees.stages_per_rank if pipeline > 1 else 1
        style = style_of(degrees.schedule)
        return cls(pipeline=pipeline, stages_per_rank=stages, style=style)

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.stages_per_rank

    @property
    def has_both_ends(self) -> bool:
        """Whether the first and the last stage are on the same rank."""
        return self.rank_of(0) == self.rank_of(self.num_stages - 1)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank, in model order."""
        return _stages_of(self, rank)

    def rank_of(self, stage: int) -> int:
        """Return the pipeline rank that holds a stage."""
        return self._place(*divmod(stage, self.pipeline))

    def _place(self, turn: int, place: int) -> int:
        """Convert a rank to its position among the stages of one turn, or back."""
        return self.pipeline - 1 - place if self.style == "v" and turn % 2 else place


@cache  # a layout search calls this a million times with few different arguments
def _stages_of(placement: StagePlacement, rank: int) -> tuple[int, ...]:
    ranks, turns = placement.pipeline, range(placement.stages_per_rank)
    return tuple(turn * ranks + placement._place(turn, rank) for turn in turns)


def style_of(schedule: str) -> Style:
    """Return how a schedule wants its stages placed."""
    return "v" if schedule in V_SCHEDULES else "loop"


def splits_backward(degrees: Parallelism) -> bool:
    """Return whether the backward pass computes input and weight gradients separately.

    A compiled layer is one node of the autograd graph, so two separate calls would compute both
    gradients twice; a recomputed layer would be recomputed for each. For both, the schedule's
    slots for weight gradients are empty.
    """
    whole = degrees.compile != "none" or degrees.recompute != "none"
    return degrees.schedule in SPLIT_SCHEDULES and not whole


def stage_layers(
    num_layers: int, stages: int, balance: Balance, costs: tuple[int, ...] = ()
) -> tuple[range, ...]:
    """Split ``num_layers`` into one contiguous range per stage, with at least one layer each.

    Middle stages get the remainder: the first stage holds the embedding and, under 1F1B, the
    activations of the most microbatches; the last stage holds the head and the logits.
    ``layers`` balances only the layers; ``layers_and_ends`` counts the embedding and the head
    as one layer each, as DeepSpeed's ``partition_method='type:transformer|embedding'`` does.
    Each layer goes to the stage with the lowest load, among equals to the one nearest the
    middle. If layers have different ``costs``, the largest sum of a stage is the least possible
    instead; an end then costs as much as a mean layer.
    """
    if stages > num_layers:
        problem = f"{stages} stages are more than {num_layers} layers"
        remedy = f"set pipeline x stages_per_rank to {num_layers} or less"
        raise RecipeError("parallelism.pipeline", problem, remedy)
    if costs:
        end = sum(costs) // num_layers if balance == "layers_and_ends" else 0
        loads = list(costs)
        loads[0] += end
        loads[-1] += end
        return _to_ranges(_cut_by_cost(tuple(loads), stages))
    load = [1] * stages
    if balance == "layers_and_ends":
        load[0] += 1
        load[-1] += 1
    counts = [1] * stages
    for _ in range(num_layers - stages):
        taker = min(range(stages), key=lambda stage: (load[stage], abs(2 * stage - stages + 1)))
        load[taker] += 1
        counts[taker] += 1
    return _to_ranges(counts)


def _to_ranges(counts: Sequence[int]) -> tuple[range, ...]:
    ends = zip(accumulate(counts), counts, strict=True)
    return tuple(range(end - count, end) for end, count in ends)


@cache
def _cut_by_cost(costs: tuple[int, ...], stages: int) -> tuple[int, ...]:
    """Return the number of layers of each stage with the least possible largest cost."""
    sums = [0, *accumulate(costs)]
    limits = sorted({high - low for low, high in combinations(sums, 2)})
    least = bisect_left(limits, 1, key=lambda limit: bool(_fill_stages(costs, stages, limit)))
    return _fill_stages(costs, stages, limits[least])


def _fill_stages(costs: Sequence[int], stages: int, limit: int) -> tuple[int, ...]:
    """Return the layers of each stage with at most ``limit`` per stage; empty if impossible."""
    counts, layer = [], 0
    for later in range(stages - 1, -1, -1):
        first, load = layer, 0
        while layer < len(costs) - later and load + costs[layer] <= limit:
            load += costs[layer]
            layer += 1
        counts.append(layer - first)
    return tuple(counts) if layer == len(costs) and all(counts) else ()
