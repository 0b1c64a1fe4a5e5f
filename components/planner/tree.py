"""Cost of a tree of runs: each node's own part, their sum, and the longest path in days."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from components.config.children import needed_tokens, sort_by_parent
from components.config.recipe import Recipe
from components.config.start import end_of
from components.planner.cost import CostEstimate, PlannedNode, PlannedTree
from components.planner.plan import plan_recipe

WEIGHT_BYTES = 2  # bytes of an exported weight in bfloat16
ROOT_RUN = "root"
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class RunOnPath:
    """Path to a node: the day its run starts, its days, and the runs that lead to it."""

    recipe: Recipe
    begins_days: float
    days: float
    path: tuple[str, ...]

    def find_day(self, tokens: int) -> float:
        """Return the day on which the run has processed ``tokens``, at a constant rate."""
        clock, end = self.recipe.token_clock, end_of(self.recipe)
        began = clock.tokens_after(self.recipe.first_step)
        return self.begins_days + self.days * (tokens - began) / max(1, end - began)


def plan_tree(
    recipe: Recipe, bill: CostEstimate | None, runs: Mapping[str, Recipe]
) -> PlannedTree:
    """Plan the ``runs`` below a recipe with the cost ``bill``; each counts its own steps."""
    nodes = {ROOT_RUN: _planned("run", None, None, recipe, bill)}
    paths: dict[str | None, RunOnPath] = {
        None: RunOnPath(recipe, 0.0, nodes[ROOT_RUN].days or 0.0, (ROOT_RUN,))
    }
    for name in sort_by_parent(recipe.children):
        child = recipe.children[name]
        parent = paths.get(child.of)
        if (run := runs.get(name)) is None:
            nodes[name] = _planned(child.node_kind, child.of, child.at_tokens, None, None)
            if child.merge is not None and parent is not None:
                paths[name] = parent  # an average exists as soon as its last checkpoint exists
            continue
        own = plan_recipe(run).cost_estimate
        nodes[name] = _planned("run", child.of, child.at_tokens, run, own)
        assert parent is not None, "a run comes from a run or a merge"
        day = parent.find_day(child.at_tokens or end_of(parent.recipe))
        paths[name] = RunOnPath(run, day, own.days if own else 0.0, (*parent.path, name))
    trained = [node for node in nodes.values() if node.kind == "run"]
    longest = max(paths.values(), key=lambda path: path.begins_days + path.days)
    days, names = longest.begins_days + longest.days, longest.path
    if recipe.cluster.scheduler == "none":
        days = sum(node.days or 0.0 for node in trained)
        names = tuple(name for name, node in nodes.items() if node.kind == "run")
    known = all(node.days is not None for node in trained)
    return PlannedTree(
        nodes=nodes,
        device_hours=_sum(node.device_hours for node in trained),
        energy_kwh=_sum(node.energy_kwh for node in trained),
        storage_bytes=_sum(node.storage_bytes for node in trained),
        longest_days=days if known else None,
        longest_path=names,
        not_planned=tuple(name for name, node in nodes.items() if node.kind != "run"),
    )


def _planned(
    kind: str, of: str | None, at: int | None, recipe: Recipe | None, bill: CostEstimate | None
) -> PlannedNode:
    stored = None
    if recipe is not None and bill is not None:
        stored = count_stored_checkpoints(recipe) * bill.checkpoints.bytes + weights_bytes(
            recipe
        )
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
    values = list(parts)
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None


def count_stored_checkpoints(recipe: Recipe) -> int:
    """Count a run's checkpoints at a time, at most: a write comes before a deletion."""
    policy = recipe.checkpoint
    several = 0
    if policy.keep_every_tokens != "none":
        several = ceil(recipe.budget.total_tokens / policy.keep_every_tokens)
    return policy.keep + 1 + policy.keep_best + several + len(needed_tokens(recipe))


def weights_bytes(recipe: Recipe) -> int:
    """Return the bytes of a run's exported weights: the final ones and earlier ones."""
    policy, stay = recipe.checkpoint, 0
    if policy.weights_every_tokens != "none":
        stay = ceil(recipe.budget.total_tokens / policy.weights_every_tokens)
    return (1 + stay) * recipe.derived_numbers.parameters.total * WEIGHT_BYTES
