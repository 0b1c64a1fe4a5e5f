"""Pipeline stages: which rank holds which of them, and how a schedule goes back through them.

In a loop stage s is on rank s % p. In a V (Qi et al. 2023, arXiv 2401.10241, section 6) rank r
has the stages r and 2 p - 1 - r: the first and the last one are on rank 0, which has embedding,
head and loss, and what goes from one stage to the next on the same rank is not sent.
"""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Literal

from components.config.schema.sections import Parallelism
from components.config.schema.types import Balance
from components.errors import RecipeError

V_SCHEDULES = frozenset({"zbv", "dualpipev"})
SPLIT_SCHEDULES = V_SCHEDULES | {"zero_bubble"}
"""Schedules that take the gradients of a stage's input and of its weights apart."""

Style = Literal["loop", "v"]


@dataclass(frozen=True, kw_only=True)
class StagePlacement:
    """The stages of ``pipeline`` ranks, each with ``stages_per_rank``."""

    pipeline: int
    stages_per_rank: int
    style: Style

    @classmethod
    def of(cls, degrees: Parallelism) -> "StagePlacement":
        """Read the degrees of a recipe; without a pipeline there is one stage."""
        pipeline = degrees.pipeline
        stages = degrees.stages_per_rank if pipeline > 1 else 1
        style = style_of(degrees.schedule)
        return cls(pipeline=pipeline, stages_per_rank=stages, style=style)

    @property
    def count(self) -> int:
        return self.pipeline * self.stages_per_rank

    @property
    def has_both_ends(self) -> bool:
        """Whether the first and the last stage are on one rank."""
        return self.rank_of(0) == self.rank_of(self.count - 1)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """List the stages of a rank, in the order of the model."""
        return _stages_of(self, rank)

    def rank_of(self, stage: int) -> int:
        """Return the pipeline rank that holds a stage."""
        return self._place(*divmod(stage, self.pipeline))

    def _place(self, turn: int, place: int) -> int:
        """Turn a rank into its place among the stages of one turn, or back."""
        return self.pipeline - 1 - place if self.style == "v" and turn % 2 else place


@cache  # a search for a layout asks a million times for a few of them
def _stages_of(placement: StagePlacement, rank: int) -> tuple[int, ...]:
    ranks, turns = placement.pipeline, range(placement.stages_per_rank)
    return tuple(turn * ranks + placement._place(turn, rank) for turn in turns)


def style_of(schedule: str) -> Style:
    """Return how a schedule wants its stages placed."""
    return "v" if schedule in V_SCHEDULES else "loop"


def splits_backward(degrees: Parallelism) -> bool:
    """Whether weight gradients are computed apart from those of a stage's input.

    A compiled layer is one node of the graph, which computes both at once, twice if it is asked
    for each; a recomputed one would have to be gone through again for each. So where layers are
    compiled or recomputed the backward pass stays whole, and the schedule's places for weight
    gradients are empty.
    """
    whole = degrees.compile != "none" or degrees.recompute != "none"
    return degrees.schedule in SPLIT_SCHEDULES and not whole


def stage_layers(num_layers: int, stages: int, balance: Balance) -> tuple[range, ...]:
    """Cut ``num_layers`` into one contiguous range a stage, at least one layer each.

    What does not divide goes to the middle: the first stage holds the embedding and, under
    1F1B, the activations of the most microbatches; the last one the head and the logits.
    ``layers`` evens out the layers alone; ``layers_and_ends`` counts the embedding and the head
    as one layer each, as DeepSpeed's ``partition_method='type:transformer|embedding'`` does.
    Layers are dealt one by one to the stage with the least, the one nearest the middle first.

    Raises:
        RecipeError: there are more stages than layers.
    """
    if stages > num_layers:
        problem = f"{stages} stages for {num_layers} layers would leave some without a layer"
        remedy = f"pipeline x stages_per_rank may be {num_layers} at most"
        raise RecipeError("parallelism.pipeline", problem, remedy)
    load = [1] * stages
    if balance == "layers_and_ends":
        load[0] += 1
        load[-1] += 1
    counts = [1] * stages
    for _ in range(num_layers - stages):
        taker = min(range(stages), key=lambda stage: (load[stage], abs(2 * stage - stages + 1)))
        load[taker] += 1
        counts[taker] += 1
    ends = zip(accumulate(counts), counts, strict=True)
    return tuple(range(end - count, end) for end, count in ends)
