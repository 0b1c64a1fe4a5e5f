"""The bill of a tree of runs: each node's own part, their sum, and the longest way in days."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from components.config.children import needed_tokens, ordered
from components.config.recipe import Recipe
from components.config.start import end_of
from components.planner.cost import CostEstimate, PlannedNode, PlannedTree
from components.planner.plan import plan_recipe

WEIGHT_BYTES = 2  # an exported weight, in bfloat16
TRUNK = "trunk"
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class RunOnPath:
    """How a node is reached: when a run's own tokens begin, and through which runs."""

    recipe: Recipe
    begins_days: float
    days: float
    path: tuple[str, ...]

    def reaches(self, tokens: int) -> float:
        """Return the day on which the run has seen so many, its days spread evenly."""
        clock, end = self.recipe.clock, end_of(self.recipe)
        began = clock.tokens_after(self.recipe.first_step)
        return self.begins_days + self.days * (tokens - began) / max(1, end - began)


def plan_tree(
    recipe: Recipe, bill: CostEstimate | None, runs: Mapping[str, Recipe]
) -> PlannedTree:
    """Plan the ``runs`` below a recipe whose own ``bill`` is known, each by its own steps."""
    nodes = {TRUNK: _planned("run", None, None, recipe, bill)}
    ways: dict[str | None, RunOnPath] = {
        None: RunOnPath(recipe, 0.0, nodes[TRUNK].days or 0.0, (TRUNK,))
    }
    for name in ordered(recipe.children):
        child = recipe.children[name]
        above = ways.get(child.of)
        if (run := runs.get(name)) is None:
            nodes[name] = _planned(child.kind, child.of, child.at_tokens, None, None)
            if child.merge is not None and above is not None:
                ways[name] = above  # an average is there when its last checkpoint is
            continue
        own = plan_recipe(run).bill
        nodes[name] = _planned("run", child.of, child.at_tokens, run, own)
        assert above is not None, "a run comes from a run or a merge"
        day = above.reaches(child.at_tokens or end_of(above.recipe))
        ways[name] = RunOnPath(run, day, own.days if own else 0.0, (*above.path, name))
    trained = [one for one in nodes.values() if one.kind == "run"]
    longest = max(ways.values(), key=lambda way: way.begins_days + way.days)
    days, path = longest.begins_days + longest.days, longest.path
    if recipe.cluster.scheduler == "none":
        days = sum(one.days or 0.0 for one in trained)
        path = tuple(name for name, one in nodes.items() if one.kind == "run")
    known = all(one.days is not None for one in trained)
    return PlannedTree(
        nodes=nodes,
        device_hours=_sum(one.device_hours for one in trained),
        energy_kwh=_sum(one.energy_kwh for one in trained),
        storage_bytes=_sum(one.storage_bytes for one in trained),
        longest_days=days if known else None,
        longest_path=path,
        not_planned=tuple(name for name, one in nodes.items() if one.kind != "run"),
    )


def _planned(
    kind: str, of: str | None, at: int | None, recipe: Recipe | None, bill: CostEstimate | None
) -> PlannedNode:
    stored = None
    if recipe is not None and bill is not None:
        stored = kept_checkpoints(recipe) * bill.checkpoints.bytes + weights_bytes(recipe)
    return PlannedNode(
        kind=kind,
        of=of,
        at_tokens=at,
        device_hours=bill.device_hours if bill else None,
        days=bill.days if bill else None,
        energy_kwh=bill.energy_kwh if bill else None,
        storage_bytes=stored,
    )


def _sum(parts: Iterable[Number | None]) -> Number | None:
    found = list(parts)
    known = [one for one in found if one is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(found) else None


def kept_checkpoints(recipe: Recipe) -> int:
    """Count whole checkpoints of a run at a time, at most: one is written before one goes."""
    policy = recipe.checkpoint
    several = 0
    if policy.keep_every_tokens != "none":
        several = ceil(recipe.budget.total_tokens / policy.keep_every_tokens)
    return policy.keep + 1 + policy.keep_best + several + len(needed_tokens(recipe))


def weights_bytes(recipe: Recipe) -> int:
    """Return the bytes of a run's weights: those at the end, and those that stay before."""
    policy, stay = recipe.checkpoint, 0
    if policy.weights_every_tokens != "none":
        stay = ceil(recipe.budget.total_tokens / policy.weights_every_tokens)
    return (1 + stay) * recipe.derived.parameters.total * WEIGHT_BYTES
