"""All rules between sections, and warnings of what is allowed but known to cost."""

from math import prod
from typing import TYPE_CHECKING

from components.config.microbatches import neighbours
from components.config.rules.data import check_data, check_schedule
from components.config.rules.engine import FLOAT8, check_float8
from components.config.rules.fault_tolerance import check_guard, check_profiler, check_watchdog
from components.config.rules.layout import check_layout
from components.config.rules.model import check_model
from components.config.shape import check_shape
from components.errors import RecipeError

if TYPE_CHECKING:
    from components.config.schema.recipe import Recipe


def check_rules(recipe: "Recipe") -> None:
    """Hold every rule that spans fields.

    Raises:
        RecipeError: the first rule that is broken.
    """
    check_shape(recipe.shape)
    check_model(recipe.model)
    check_schedule(recipe.schedule)
    pieces, rows = recipe.tokenizer["vocab_size"], recipe.shape.vocab_size
    if pieces > rows:
        problem = f"{pieces:,} pieces do not fit model.vocab_size {rows:,}"
        raise RecipeError("tokenizer.vocab_size", problem, f"set model.vocab_size={pieces} too")
    _check_budget(recipe)
    _check_ramp(recipe)
    _check_precision(recipe)
    check_float8(recipe)
    check_data(recipe.data, total_tokens=recipe.budget.total_tokens)
    check_layout(recipe)
    check_watchdog(recipe)
    check_guard(recipe)
    check_profiler(recipe)


def _check_budget(recipe: "Recipe") -> None:
    budget = recipe.budget
    if budget.global_batch_tokens % budget.sequence_length:
        below, above = neighbours(budget.global_batch_tokens, budget.sequence_length)
        raise RecipeError(
            "budget.global_batch_tokens",
            f"{budget.global_batch_tokens:,} is no multiple of sequence_length "
            f"{budget.sequence_length:,}",
            f"the nearest that are: {below:,} and {above:,}",
        )
    if budget.total_tokens < budget.global_batch_tokens:
        raise RecipeError(
            "budget.total_tokens",
            f"{budget.total_tokens:,} is less than one global batch of "
            f"{budget.global_batch_tokens:,} tokens",
            f"give at least {budget.global_batch_tokens:,}, or a smaller global_batch_tokens",
        )


def _check_ramp(recipe: "Recipe") -> None:
    budget, degrees = recipe.budget, recipe.parallelism
    if isinstance(budget.ramp_up, str):
        return
    sequences = degrees.data * degrees.expert * degrees.microbatch_sequences
    unit = budget.sequence_length * sequences
    for key in ("start_tokens", "increment_tokens"):
        value = getattr(budget.ramp_up, key)
        if value % unit:
            below, above = neighbours(value, unit)
            problem = f"{value:,} is no multiple of {unit:,}, one microbatch of every data rank"
            remedy = f"the nearest that are: {below:,} and {above:,}"
            raise RecipeError(f"budget.ramp_up.{key}", problem, remedy)
    grown = budget.global_batch_tokens - budget.ramp_up.start_tokens
    if grown <= 0 or grown % budget.ramp_up.increment_tokens:
        raise RecipeError(
            "budget.ramp_up.increment_tokens",
            f"{budget.ramp_up.increment_tokens:,} does not lead from "
            f"{budget.ramp_up.start_tokens:,} to {budget.global_batch_tokens:,}",
            "give a positive divisor of their difference",
        )


def _check_precision(recipe: "Recipe") -> None:
    scale, compute = recipe.precision.loss_scale, recipe.precision.compute
    scaled = not isinstance(scale, str)
    if not isinstance(scale, str) and scale.initial < scale.minimum:
        problem = f"{scale.initial:g} is below loss_scale.minimum {scale.minimum:g}"
        remedy = f"give at least {scale.minimum:g}"
        raise RecipeError("precision.loss_scale.initial", problem, remedy)
    if compute == "float16" and not scaled:
        problem = "float16 gradients vanish without one"
        remedy = "choose precision=fp16, or precision.compute=bfloat16"
        raise RecipeError("precision.loss_scale", problem, remedy)
    if scaled and compute not in {"float16", "auto"}:
        problem = f"{compute} needs none, it would be ignored"
        raise RecipeError("precision.loss_scale", problem, "set precision.loss_scale=none")


def warnings_of(recipe: "Recipe") -> tuple[str, ...]:
    """Return what is legal and costly, as ``path: what, and its price``.

    Ultra-Scale Playbook (Tazi et al. 2025): tensor 16 against 8 on nodes of 8, 3B model.
    Quantized training, torchao's documentation: speed with its compiler, one 8B model.
    """
    lines = []
    tensor, devices = recipe.parallelism.tensor, recipe.cluster.devices_per_node
    stride = rank_stride(recipe, "tensor")
    crossing = sum(
        first // devices != (first + (tensor - 1) * stride) // devices
        for block in range(0, recipe.cluster.ranks, stride * tensor)
        for first in range(block, block + stride)
    )
    if crossing:
        groups = recipe.cluster.ranks // tensor
        lines.append(
            f"parallelism.tensor: {crossing:,} of {groups:,} groups of {tensor} tensor ranks "
            f"lie on several nodes of {devices} devices; the Ultra-Scale Playbook lost 43 % of "
            "its throughput where that began, and 66 % of the rest at the next doubling"
        )
    if recipe.precision.compute == FLOAT8 and not isinstance(recipe.cluster.hardware, str):
        lines.append(
            "precision.compute: float8 is planned as bfloat16, time and memory: no measured "
            "run in it stands behind the planner"
        )
        if recipe.parallelism.compile == "none":
            lines.append(
                "parallelism.compile: none leaves each cast to float8 a pass over memory of "
                "its own; torchao states its gains, up to 1.25 times on 8 GPUs, for compiled "
                "layers"
            )
    return tuple(lines)


def rank_stride(recipe: "Recipe", axis: str) -> int:
    """Distance in ranks between neighbours on ``axis``: the product of all faster axes."""
    order = recipe.parallelism.rank_order
    faster = order[order.index(axis) + 1 :]
    return prod(getattr(recipe.parallelism, name) for name in faster)
