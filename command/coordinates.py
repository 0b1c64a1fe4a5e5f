"""``action=parity kind=coordinates``: do activations keep their size when the model grows?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from rich.table import Table

from command.arguments import Arguments
from command.composition.compose import compose_recipe
from command.outcome import ActionResult, Status, print_result
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from components.parity import coordinates
from components.parity.coordinates import Coordinates
from components.terminal import console

FIXED: dict[str, Any] = {
    "model.dropout": 0.0,
    "model.attention.dropout": 0.0,
    **dict.fromkeys(("precision.compute", "precision.accumulate"), "float32"),
    "precision.loss_scale": "none",
    "cluster.device": "cpu",
    "cluster.ranks": 1,
}
# So large that after few steps what was learned outweighs what was drawn; many layers overshoot
# earlier.
RATES = {"width": 0.008, "depth": 0.003}
FACTS = (
    "Means of {seeds} seeds, {steps} steps on drawn tokens at a rate of {width:g}, by depth "
    "{depth:g}, in float32. The narrowest is the base. Logits at the start may shrink."
)


def run(arguments: Arguments) -> ActionResult:
    """Measure the recipe's model at several widths and depths, and say what grows."""
    recipe = compose(arguments)
    rates: dict[str, Any] = dict(RATES)
    if UserOverrides(arguments.values).covers("optimizer.lr"):
        rates = dict.fromkeys(RATES, recipe.optimizer["lr"])
    found = coordinates.check_widths(recipe, rate=rates["width"])
    found += coordinates.check_depths(recipe, rate=rates["depth"])
    flat = all(row.is_flat for row in found if is_judged(row, recipe))
    tree = as_json(found, recipe) | {"rates": rates}
    show_it = partial(show, found, recipe, rates)
    print_result(arguments.output, tree, show_it)
    return ActionResult(Status.DONE if flat else Status.DOES_NOT_HOLD)


def compose(arguments: Arguments) -> Recipe:
    """Compose the narrowest model, which is the base of a parametrization.

    Raises:
        RecipeError: a key is named that the check sets otherwise.
    """
    named = UserOverrides(arguments.values)
    for key, value in FIXED.items():
        if named.covers(key) and arguments.values.get(key) != value:
            problem = f"a check of coordinates sets it to {value}"
            raise RecipeError(key, problem, "leave it out")
    choices = {"scale": "parity"} | arguments.choices
    values = {"phases": {}} | arguments.values | FIXED
    tree = compose_recipe(replace(arguments, choices=choices, values=values)).model_dump(
        mode="json"
    )
    if base := tree["model"].get("parametrization"):
        base["base_dim"] = tree["model"]["dim"]
        if "base_layers" in base:
            base["base_layers"] = min(coordinates.DEPTHS)
    return check_recipe(tree)


def is_judged(row: Coordinates, recipe: Recipe) -> bool:
    """Whether the recipe's parametrization says that this is flat."""
    base = recipe.shape.parametrization
    if base is None or (row.axis == "depth" and base.base_layers is None):
        return False
    return row.of == "change" or row.kind != "logits"


def as_json(found: Sequence[Coordinates], recipe: Recipe) -> dict[str, object]:
    """Return the rows, and whether all that are judged are flat; null if none is."""
    judged = [row for row in found if is_judged(row, recipe)]
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
                "slope": row.slope,
                "growth": row.growth,
                "judged": is_judged(row, recipe),
                "flat": row.is_flat,
            }
            for row in found
        ],
    }


def show(found: Sequence[Coordinates], recipe: Recipe, rates: Mapping[str, float]) -> None:
    """Print a table for each axis, then how it was measured."""
    out = console(width=120)
    for axis in ("width", "depth"):
        rows = [row for row in found if row.axis == axis]
        table = Table(title=f"mean size of activations by {axis}", box=None)
        table.title_justify = "left"
        sizes = [str(size) for size in rows[0].sizes]
        for column in ("", "of", *sizes, "slope", "along the line", ""):
            justify: Literal["left", "right"] = "right" if column[-1:].isdigit() else "left"
            table.add_column(column, justify=justify, no_wrap=True)
        for row in rows:
            numbers = [f"{value:.3g}" for value in row.sizes.values()]
            line = f"{row.slope:+.2f}", f"x {row.growth:.3g}"
            table.add_row(row.kind, row.of, *numbers, *line, _verdict(row, recipe))
        out.print(table)
    out.print(FACTS.format(seeds=coordinates.SEEDS, steps=coordinates.STEPS, **rates))


def _verdict(row: Coordinates, recipe: Recipe) -> str:
    if is_judged(row, recipe):
        return "flat" if row.is_flat else "NOT FLAT"
    direction = "grows" if row.growth > 1.0 else "shrinks" if row.growth < 1.0 else ""
    return "" if row.is_flat else direction
