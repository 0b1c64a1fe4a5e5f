"""Scale the phases of a run down: starts, sequence lengths, batches and degrees."""

from copy import deepcopy
from math import prod
from typing import Any

from components.config.layout import OTHERS, deal_ranks
from components.config.phases import put_in
from components.config.schema.sections import AXES
from components.config.user_overrides import MutableTree, UserOverrides

LONGEST = 4  # most times the first sequence length, or a laptop would take hours
DEALT = (*OTHERS, "microbatch_sequences", "expert_capacity_factor")


def shrink_phases(tree: MutableTree, named: UserOverrides, full: MutableTree) -> None:
    """Scale start, sequence length and batch of each phase with the budget."""
    budget, before = tree["budget"], full["budget"]
    for name, phase in tree.get("phases", {}).items():
        path, own = f"phases.{name}", phase.setdefault("budget", {})
        if (first := phase.get("from_tokens")) is not None:
            scaled = first * budget["total_tokens"] // before["total_tokens"]
            named.set_default(tree, f"{path}.from_tokens", max(1, scaled))
        keys = ("sequence_length", "global_batch_tokens")
        length, batch = (own.get(key, before[key]) for key in keys)
        whole = budget["sequence_length"] == before["sequence_length"]
        most = length if whole else LONGEST * before["sequence_length"]
        shorter = budget["sequence_length"] * min(length, most) // before["sequence_length"]
        named.set_default(tree, f"{path}.budget.sequence_length", max(1, min(length, shorter)))
        length = own.get("sequence_length", length)
        tokens = budget["global_batch_tokens"] * batch // before["global_batch_tokens"]
        samples = max(1, min(batch, tokens) // length)
        named.set_default(tree, f"{path}.budget.global_batch_tokens", samples * length)


def deal_phases(tree: MutableTree, microbatch_sequences: int, named: UserOverrides) -> None:
    """Distribute the ranks of a miniature over the axes of each phase, as `deal_ranks` does.

    Axes that a phase names come first, with at most two ranks each. The batch is rounded up to
    a multiple of the data ranks.
    """
    for name, phase in tree.get("phases", {}).items():
        whole: Any = deepcopy(tree)
        put_in(whole, phase)
        whole["budget"]["ramp_up"] = "none"
        deal_ranks(whole, microbatch_sequences, named.with_keys(*_added(tree, phase, whole)))
        degrees, budget = whole["parallelism"], whole["budget"]
        group = budget["sequence_length"] * degrees["data"] * degrees["expert"]
        batch = -(-budget["global_batch_tokens"] // group) * group
        named.set_default(tree, f"phases.{name}.budget.global_batch_tokens", batch)
        if batch != budget["global_batch_tokens"]:
            degrees["microbatch_sequences"] = 1
        own = phase.setdefault("parallelism", {})
        if not named.is_overridden(f"phases.{name}.parallelism.data_shard"):
            own.pop("data_shard", None)  # all data ranks, as in `deal_ranks`
        for key in DEALT:
            if key in own or degrees[key] != tree["parallelism"][key]:
                own[key] = degrees[key]


def _added(tree: MutableTree, phase: Any, whole: Any) -> list[str]:
    """Limit each axis that a phase names to two ranks, and return these axes' paths."""
    named, degrees, added = phase.get("parallelism", {}), whole["parallelism"], []
    left = prod(int(tree["parallelism"][axis]) for axis in AXES)
    for axis in OTHERS:
        if axis in named and degrees[axis] != "auto" and left % 2 == 0:
            degrees[axis] = min(degrees[axis], 2)
            left //= degrees[axis]
            added.append(f"parallelism.{axis}")
    return added
