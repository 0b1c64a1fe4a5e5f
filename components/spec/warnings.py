"""What a recipe may do but is known to pay for: one line each, with the published cost."""

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from components.spec.recipe import Recipe


def warnings_of(recipe: "Recipe") -> tuple[str, ...]:
    """Say what is legal and costly, as ``path: what, and its price``."""
    return tuple(_tensor_over_nodes(recipe))


def _tensor_over_nodes(recipe: "Recipe") -> list[str]:
    """Ultra-Scale Playbook (Tazi et al. 2025): tensor 16 against 8 on nodes of 8, 3B model."""
    tensor, devices = recipe.parallelism.tensor, recipe.cluster.devices_per_node
    stride = rank_stride(recipe, "tensor")
    crossing = sum(
        first // devices != (first + (tensor - 1) * stride) // devices
        for block in range(0, recipe.cluster.ranks, stride * tensor)
        for first in range(block, block + stride)
    )
    if not crossing:
        return []
    groups = recipe.cluster.ranks // tensor
    return [
        f"parallelism.tensor: {crossing:,} of {groups:,} groups of {tensor} tensor ranks lie "
        f"on several nodes of {devices} devices; the Ultra-Scale Playbook lost 43 % of its "
        "throughput where that began, and 66 % of the rest at the next doubling"
    ]


def rank_stride(recipe: "Recipe", axis: str) -> int:
    """Distance in ranks between neighbours on ``axis``: the product of all faster axes."""
    order = recipe.parallelism.rank_order
    faster = order[order.index(axis) + 1 :]
    return prod(getattr(recipe.parallelism, name) for name in faster)
