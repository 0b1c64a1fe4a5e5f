"""All rules between sections, and warnings of what is allowed but known to cost."""

from math import prod
from typing import TYPE_CHECKING

from components.config.microbatches import check_microbatches, neighbours
from components.config.rules import engine, parts
from components.config.rules.layout import check_degrees
from components.config.shape import check_shape
from components.errors import RecipeError

if TYPE_CHECKING:
    from components.config.schema.recipe import Recipe
    from components.config.schema.sections import Precision


def check_rules(recipe: "Recipe") -> None:
    """Hold every rule that spans fields.

    Raises:
        RecipeError: the first rule that is broken.
    """
    check_shape(recipe.shape)
    parts.check_model(recipe.model)
    parts.check_schedule(recipe.schedule)
    pieces, rows = recipe.tokenizer["vocab_size"], recipe.shape.vocab_size
    if pieces > rows:
        problem = f"{pieces:,} pieces do not fit model.vocab_size {rows:,}"
        raise RecipeError("tokenizer.vocab_size", problem, f"set model.vocab_size={pieces} too")
    _check_budget(recipe)
    _check_precision(recipe.precision)
    engine.check_float8(recipe)
    parts.check_data(recipe.data, total_tokens=recipe.budget.total_tokens)
    check_degrees(recipe)
    check_microbatches(recipe)
    engine.check_watchdog(recipe)
    engine.check_guard(recipe)
    engine.check_profiler(recipe)


def _check_budget(recipe: "Recipe") -> None:
    budget, degrees = recipe.budget, recipe.parallelism
    length, batch, ramp = budget.sequence_length, budget.global_batch_tokens, budget.ramp_up
    _check_multiple("global_batch_tokens", batch, length, f"sequence_length {length:,}")
    if budget.total_tokens < batch:
        problem = f"{budget.total_tokens:,} is less than one global batch of {batch:,} tokens"
        remedy = f"give at least {batch:,}, or a smaller global_batch_tokens"
        raise RecipeError("budget.total_tokens", problem, remedy)
    if isinstance(ramp, str):
        return
    unit = length * degrees.data * degrees.expert * degrees.microbatch_sequences
    for key in ("start_tokens", "increment_tokens"):
        what = f"{unit:,}, one microbatch of every data rank"
        _check_multiple(f"ramp_up.{key}", getattr(ramp, key), unit, what)
    grown, increment = batch - ramp.start_tokens, ramp.increment_tokens
    if grown <= 0 or grown % increment:
        problem = f"{increment:,} does not lead from {ramp.start_tokens:,} to {batch:,}"
        remedy = "give a positive divisor of their difference"
        raise RecipeError("budget.ramp_up.increment_tokens", problem, remedy)


def _check_multiple(key: str, value: int, unit: int, what: str) -> None:
    if value % unit:
        below, above = neighbours(value, unit)
        remedy = f"the nearest that are: {below:,} and {above:,}"
        raise RecipeError(f"budget.{key}", f"{value:,} is no multiple of {what}", remedy)


def _check_precision(precision: "Precision") -> None:
    scale, compute = precision.loss_scale, precision.compute
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
    if recipe.precision.compute == engine.FLOAT8 and not isinstance(
        recipe.cluster.hardware, str
    ):
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
