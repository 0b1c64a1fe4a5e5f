"""The phases of a run in its miniature: where they were, longer or larger as they were."""

from copy import deepcopy
from math import prod
from typing import Any

from components.config.layout import OTHERS, deal_ranks
from components.config.phases import put_in
from components.config.schema.sections import AXES
from components.config.user_overrides import Tree, UserOverrides

LONGEST = 4  # times the first length: what is longer is cut, or a laptop would take hours
DEALT = (*OTHERS, "microbatch_sequences", "expert_bound")


def shrink_phases(tree: Tree, named: UserOverrides, full: Tree) -> None:
    """Give each phase its place in the smaller budget, and its share of length and batch."""
    budget, before = tree["budget"], full["budget"]
    for name, phase in _phases(tree).items():
        path, own = f"phases.{name}", phase.setdefault("budget", {})
        if (first := phase.get("from_tokens")) is not None:
            scaled = first * budget["total_tokens"] // before["total_tokens"]
            named.put(tree, f"{path}.from_tokens", max(1, scaled))
        keys = ("sequence_length", "global_batch_tokens")
        length, batch = (own.get(key, before[key]) for key in keys)
        whole = budget["sequence_length"] == before["sequence_length"]
        most = length if whole else LONGEST * before["sequence_length"]
        shorter = budget["sequence_length"] * min(length, most) // before["sequence_length"]
        named.put(tree, f"{path}.budget.sequence_length", max(1, min(length, shorter)))
        length = own.get("sequence_length", length)
        tokens = budget["global_batch_tokens"] * batch // before["global_batch_tokens"]
        samples = max(1, min(batch, tokens) // length)
        named.put(tree, f"{path}.budget.global_batch_tokens", samples * length)


def deal_phases(tree: Tree, microbatch_sequences: int, named: UserOverrides) -> None:
    """Deal the ranks of a miniature to the axes that each phase uses, as `deal_ranks` does.

    The axes that a phase names come first, with two ranks each. A batch too small to divide
    among the data ranks becomes the next larger one that does.
    """
    for name, phase in _phases(tree).items():
        whole: Any = deepcopy(tree)
        put_in(whole, phase)
        whole["budget"]["ramp_up"] = "none"
        deal_ranks(whole, microbatch_sequences, named.also(*_added(tree, phase, whole)))
        degrees, budget = whole["parallelism"], whole["budget"]
        group = budget["sequence_length"] * degrees["data"] * degrees["expert"]
        batch = -(-budget["global_batch_tokens"] // group) * group
        named.put(tree, f"phases.{name}.budget.global_batch_tokens", batch)
        if batch != budget["global_batch_tokens"]:
            degrees["microbatch_sequences"] = 1
        own = phase.setdefault("parallelism", {})
        if not named.covers(f"phases.{name}.parallelism.data_shard"):
            own.pop("data_shard", None)  # all data ranks, as in `deal_ranks`
        for key in DEALT:
            if key in own or degrees[key] != tree["parallelism"][key]:
                own[key] = degrees[key]


def _phases(tree: Tree) -> Any:
    """Give the phases that there are; a settled tree without any has no such key."""
    return tree.get("phases", {})


def _added(tree: Tree, phase: Any, whole: Any) -> list[str]:
    """Give two ranks at most to each axis that a phase names, and treat it as named."""
    named, degrees, left = phase.get("parallelism", {}), whole["parallelism"], _ranks(tree)
    added = []
    for axis in OTHERS:
        if axis in named and degrees[axis] != "auto" and left % 2 == 0:
            degrees[axis] = min(degrees[axis], 2)
            left //= degrees[axis]
            added.append(f"parallelism.{axis}")
    return added


def _ranks(tree: Tree) -> int:
    return prod(int(tree["parallelism"][axis]) for axis in AXES)
