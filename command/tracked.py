"""Which trackers a run is sent to: those of its recipe, or those that the command names."""

from typing import Any

from command.arguments import Arguments
from command.compose import compose_group
from components.errors import RecipeError
from components.spec.recipe import Recipe, read_section
from components.spec.tracking import Tracking

SECTION = "tracking"


def tracking_of(recipe: Recipe, arguments: Arguments) -> Tracking:
    """Take the recipe's own section, or ``tracking=NAME``, with the keys that are named.

    Nothing that a run computes depends on it, so it may be said, or changed, when all is done.

    Raises:
        RecipeError: a key that is unknown or of another type, or no tracker at all.
    """
    tree = recipe.tracking.model_dump(mode="json")
    if SECTION in arguments.choices:
        tree = compose_group(SECTION, arguments.choices[SECTION])
    for key, value in arguments.values.items():
        _put(tree, key, value)
    tracking = read_section(Tracking, tree, SECTION)
    if tracking.is_empty:
        remedy = "add tracking=wandb, tracking=mlflow or tracking=both"
        raise RecipeError(SECTION, "this run's recipe names no tracker", remedy)
    return tracking


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    _, tracker, *names = key.split(".")
    if not names:
        tree[tracker] = value
        return
    if not isinstance(tree.get(tracker), dict):
        problem = f"there is no {SECTION}.{tracker} that could have it"
        raise RecipeError(key, problem, f"add {SECTION}={tracker}")
    tree[tracker][".".join(names)] = value
