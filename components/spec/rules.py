"""Rules between sections. Each says the path, the value, the rule, and a value that works."""

from typing import TYPE_CHECKING

from components.errors import RecipeError
from components.spec.data_rules import check_data
from components.spec.float8_rules import check_float8
from components.spec.guard_rules import check_guard
from components.spec.layout_rules import check_layout
from components.spec.microbatches import neighbours
from components.spec.model_rules import check_model
from components.spec.profiler import check_profiler
from components.spec.schedule_rules import check_schedule
from components.spec.shape import check_shape
from components.spec.watchdog_rules import check_watchdog

if TYPE_CHECKING:
    from components.spec.recipe import Recipe


def check_rules(recipe: "Recipe") -> None:
    """Hold every rule that spans fields.

    Raises:
        RecipeError: the first rule that is broken.
    """
    check_shape(recipe.shape)
    check_model(recipe.model)
    check_schedule(recipe.schedule)
    _check_vocabulary(recipe)
    _check_budget(recipe)
    _check_ramp(recipe)
    _check_precision(recipe)
    check_float8(recipe)
    check_data(recipe.data, total_tokens=recipe.budget.total_tokens)
    check_layout(recipe)
    check_watchdog(recipe)
    check_guard(recipe)
    check_profiler(recipe)


def _check_vocabulary(recipe: "Recipe") -> None:
    pieces, rows = recipe.tokenizer["vocab_size"], recipe.shape.vocab_size
    if pieces > rows:
        raise RecipeError(
            "tokenizer.vocab_size",
            f"{pieces:,} pieces do not fit model.vocab_size {rows:,}",
            f"set model.vocab_size={pieces} too",
        )


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
            raise RecipeError(
                f"budget.ramp_up.{key}",
                f"{value:,} is no multiple of {unit:,}, one microbatch of every data rank",
                f"the nearest that are: {below:,} and {above:,}",
            )
    grown = budget.global_batch_tokens - budget.ramp_up.start_tokens
    if grown <= 0 or grown % budget.ramp_up.increment_tokens:
        raise RecipeError(
            "budget.ramp_up.increment_tokens",
            f"{budget.ramp_up.increment_tokens:,} does not lead from "
            f"{budget.ramp_up.start_tokens:,} to {budget.global_batch_tokens:,}",
            "give a positive divisor of their difference",
        )


def _check_precision(recipe: "Recipe") -> None:
    _check_loss_scale(recipe)
    scaled = not isinstance(recipe.precision.loss_scale, str)
    compute = recipe.precision.compute
    if compute == "float16" and not scaled:
        raise RecipeError(
            "precision.loss_scale",
            "float16 gradients vanish without one",
            "choose precision=fp16, or precision.compute=bfloat16",
        )
    if scaled and compute not in {"float16", "auto"}:
        raise RecipeError(
            "precision.loss_scale",
            f"{compute} needs none, it would be ignored",
            "set precision.loss_scale=none",
        )


def _check_loss_scale(recipe: "Recipe") -> None:
    scale = recipe.precision.loss_scale
    if not isinstance(scale, str) and scale.initial < scale.minimum:
        raise RecipeError(
            "precision.loss_scale.initial",
            f"{scale.initial:g} is below loss_scale.minimum {scale.minimum:g}",
            f"give at least {scale.minimum:g}",
        )
