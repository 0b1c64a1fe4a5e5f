"""A run folder that somebody else made: the places it names are theirs, not this user's.

Of a run that this user made here every place is honoured, for the user named it. Of any other
those below the working folder are, and those that the user names again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.places import check_places, refuse_outside
from components.errors import RecipeError
from components.run.ownership import is_own
from components.spec.named import Named
from components.spec.recipe import Recipe
from components.train.run_folder import RunFolder

FOLDER = "data.folder"


def check_run_places(folder: RunFolder, recipe: Recipe, arguments: Arguments) -> None:
    """Refuse, before a run goes on, places outside that are not the user's own words.

    Raises:
        RecipeError: the first such place of the recipe.
    """
    if is_own(folder.recipe):
        return
    try:
        check_places(recipe.model_dump(mode="json"), Named(arguments.values))
    except RecipeError as error:
        raise _theirs(folder, error) from None


def check_data_place(folder: RunFolder, recipe: Recipe, values: Mapping[str, Any]) -> None:
    """Refuse to read prepared data outside that are not the user's own words.

    Raises:
        RecipeError: the recipe's ``data.folder`` leads out, or the data lie elsewhere.
    """
    if (error := strange_data(folder, recipe, values)) is not None:
        raise error


def strange_data(
    folder: RunFolder, recipe: Recipe, values: Mapping[str, Any]
) -> RecipeError | None:
    """Say why the prepared data of a run are not read, if they are not.

    Raises:
        RecipeError: ``data.json`` cannot be read.
    """
    if not (folder.path / "data.json").exists():
        return None
    place, wanted = Path(folder.data.folder), str(values.get(FOLDER, recipe.data.folder))
    own = is_own(folder.recipe)
    if own and is_own(folder.path / "data.json"):
        return None
    try:
        if FOLDER not in values and not own:
            refuse_outside(wanted, FOLDER)
    except RecipeError as error:
        return _theirs(folder, error)
    if place.resolve().is_relative_to(Path(wanted).resolve()):
        return None
    problem = f"{place} is not below {FOLDER}, which is {wanted}"
    remedy = f"if you trust it, name it yourself: {FOLDER}={place.parent}"
    return _theirs(folder, RecipeError(str(folder.path / "data.json"), problem, remedy))


def _theirs(folder: RunFolder, error: RecipeError) -> RecipeError:
    problem = f"{error.problem}, and {folder.path} was not made by you on this machine"
    return RecipeError(error.path, problem, error.remedy)
