"""Which ranks of a run differ in what they hold and do: the kinds of pipeline stages.

Ranks of one stage differ in their data alone. Where rows do not divide evenly the first rank of
every axis holds the most, so it is the one to look at; of equal stages the first has the most
microbatches in flight.
"""

from dataclasses import dataclass
from math import prod

from components.planner.job import layout_of
from components.spec.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Role:
    """Pipeline ranks that do the same, and the rank of the world that plays it for them all.

    ``layers`` are those of each of its stages; ``first`` has the embedding, ``last`` the loss.
    ``stands_for`` counts ranks of the whole world.
    """

    rank: int
    pipeline_rank: int
    layers: tuple[int, ...]
    first: bool
    last: bool
    stands_for: int

    @property
    def name(self) -> str:
        ends = [word for word, here in (("first", self.first), ("last", self.last)) if here]
        where = " and ".join(ends) or "inner"
        return f"{where}, {' + '.join(map(str, self.layers))} layers"


def roles_of(recipe: Recipe) -> tuple[Role, ...]:
    """List the roles in the order of the pipeline."""
    pipeline, stages = recipe.parallelism.pipeline, recipe.derived.layers_by_stage
    found: dict[tuple[tuple[int, ...], bool, bool], list[int]] = {}
    for rank in range(pipeline):
        kind = stages[rank::pipeline], rank == 0, rank == (len(stages) - 1) % pipeline
        found.setdefault(kind, []).append(rank)
    return tuple(
        Role(
            rank=ranks[0] * _stride(recipe),
            pipeline_rank=ranks[0],
            layers=layers,
            first=first,
            last=last,
            stands_for=len(ranks) * recipe.cluster.ranks // pipeline,
        )
        for (layers, first, last), ranks in found.items()
    )


def _stride(recipe: Recipe) -> int:
    """Count the ranks from one pipeline stage to the next, all other places being 0."""
    layout = layout_of(
        recipe.parallelism,
        layers=recipe.derived.layers_by_stage,
        devices_per_node=recipe.cluster.devices_per_node,
    )
    order = layout.rank_order
    return prod(getattr(layout, axis) for axis in order[order.index("pipeline") + 1 :])
