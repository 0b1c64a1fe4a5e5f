"""Coordinate check, ``action=parity kind=coordinates``: activation sizes as the model grows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from command.arguments import Arguments
from command.composition.compose import compose_recipe
from command.outcome import ActionResult, Status, print_result
from components.config.check import check_recipe
from components.config.model_spec.parametrization import MuPSpec
from components.config.recipe import Recipe
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from components.parity import coordinates
from components.parity.coordinates import Coordinates
from components.report.tables import Grid, terminal_table
from components.terminal import create_console

FIXED: dict[str, Any] = {
    "model.dropout": 0.0,
    "model.attention.dropout": 0.0,
    **dict.fromkeys(("precision.compute", "precision.accumulate"), "float32"),
    "precision.loss_scale": "none",
    "cluster.device": "cpu",
    "cluster.ranks": 1,
}
# Rates so large that after few steps the updates outweigh the initial weights. Deep models
# overshoot at lower rates.
RATES = {"width": 0.008, "depth": 0.003}
FACTS = (
    "Mean of {seeds} seeds, {steps} steps on random tokens in float32; learning rate {width:g} "
    "by width, {depth:g} by depth. The base is the narrowest model. Early logits may shrink."
)


def check_coordinates(arguments: Arguments) -> ActionResult:
    """Measure activations of the recipe's model at several widths and depths; report growth."""
    recipe = compose_narrowest(arguments)
    rates: dict[str, Any] = dict(RATES)
    if UserOverrides(arguments.values).is_overridden("optimizer.lr"):
        rates = dict.fromkeys(RATES, recipe.optimizer["lr"])
    rows = coordinates.check_widths(recipe, rate=rates["width"])
    rows += coordinates.check_depths(recipe, rate=rates["depth"])
    flat = all(row.is_flat for row in rows if is_judged(row, recipe))
    tree = as_json(rows, recipe) | {"rates": rates}
    show_it = partial(print_coordinates, rows, recipe, rates)
    print_result(arguments.output, tree, show_it)
    return ActionResult(Status.DONE if flat else Status.DOES_NOT_HOLD)


def compose_narrowest(arguments: Arguments) -> Recipe:
    """Compose the narrowest model, the base of a parametrization; refuse fixed keys."""
    named = UserOverrides(arguments.values)
    for key, value in FIXED.items():
        if named.is_overridden(key) and arguments.values.get(key) != value:
            problem = f"kind=coordinates sets {key}={value}"
            raise RecipeError(key, problem, f"remove {key}")
    choices = {"scale": "parity"} | arguments.choices
    values = {"phases": {}} | arguments.values | FIXED
    tree = compose_recipe(replace(arguments, choices=choices, values=values)).model_dump(
        mode="json"
    )
    if "base_dim" in (base := tree["model"].get("parametrization") or {}):
        base["base_dim"] = tree["model"]["dim"]
        if "base_layers" in base:
            base["base_layers"] = min(coordinates.DEPTHS)
    return check_recipe(tree)


def is_judged(row: Coordinates, recipe: Recipe) -> bool:
    """Return whether the recipe's parametrization promises that this row is flat."""
    base = recipe.decoder_spec.parametrization
    if not isinstance(base, MuPSpec) or (row.axis == "depth" and base.base_layers is None):
        return False
    return row.of == "change" or row.kind != "logits"


def as_json(measured: Sequence[Coordinates], recipe: Recipe) -> dict[str, object]:
    """Return the rows, and whether all judged rows are flat (null if no row is judged)."""
    judged = [row for row in measured if is_judged(row, recipe)]
    return {
        "flat": all(row.is_flat for row in judged) if judged else None,
        "steps": coordinates.STEPS,
        "seeds": coordinates.SEEDS,
        "rows": [
            {
                "axis": row.axis,
                "kind": row.kind,
                "of": row.of,
                "sizes": {str(size): value for size, value in row.sizes.items()},
                "slope": row.growth_exponent,
                "growth": row.growth_ratio,
                "judged": is_judged(row, recipe),
                "flat": row.is_flat,
            }
            for row in measured
        ],
    }


def print_coordinates(
    measured: Sequence[Coordinates], recipe: Recipe, rates: Mapping[str, float]
) -> None:
    """Print a table for each axis, then the conditions of the measurement."""
    out = create_console(width=120)
    for axis in ("width", "depth"):
        rows = [row for row in measured if row.axis == axis]
        columns = ("", "of", *map(str, rows[0].sizes), "slope", "growth", "")
        cells = [
            (
                row.kind,
                row.of,
                *(f"{value:.3g}" for value in row.sizes.values()),
                f"{row.growth_exponent:+.2f}",
                f"x {row.growth_ratio:.3g}",
                _verdict(row, recipe),
            )
            for row in rows
        ]
        title = f"mean activation size by {axis}"
        grid = Grid(columns=columns, rows=cells, title=title, text_columns=2)
        out.print(terminal_table(grid))
    out.print(FACTS.format(seeds=coordinates.SEEDS, steps=coordinates.STEPS, **rates))


def _verdict(row: Coordinates, recipe: Recipe) -> str:
    if is_judged(row, recipe):
        return "flat" if row.is_flat else "NOT FLAT"
    if row.is_flat:
        return ""
    return "grows" if row.growth_ratio > 1.0 else "shrinks" if row.growth_ratio < 1.0 else ""
