"""What a recipe may do but is known to pay for: one line each, with the published cost."""

from math import prod
from typing import TYPE_CHECKING

from components.spec.float8_rules import FLOAT8

if TYPE_CHECKING:
    from components.spec.recipe import Recipe


def warnings_of(recipe: "Recipe") -> tuple[str, ...]:
    """Say what is legal and costly, as ``path: what, and its price``."""
    return (*_tensor_over_nodes(recipe), *_float8(recipe))


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


def _float8(recipe: "Recipe") -> list[str]:
    """Quantized training, torchao's documentation: speed with its compiler, one 8B model."""
    if recipe.precision.compute != FLOAT8 or isinstance(recipe.cluster.hardware, str):
        return []
    lines = [
        "precision.compute: float8 is planned as bfloat16, time and memory: no measured run in "
        "it stands behind the planner"
    ]
    if recipe.parallelism.compile == "none":
        lines.append(
            "parallelism.compile: none leaves each cast to float8 a pass over memory of its "
            "own; torchao states its gains, up to 1.25 times on 8 GPUs, for compiled layers"
        )
    return lines


def rank_stride(recipe: "Recipe", axis: str) -> int:
    """Distance in ranks between neighbours on ``axis``: the product of all faster axes."""
    order = recipe.parallelism.rank_order
    faster = order[order.index(axis) + 1 :]
    return prod(getattr(recipe.parallelism, name) for name in faster)
