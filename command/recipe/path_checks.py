"""Path checks: where received files and run folders may point to; the runs a command names.

What a user names on the command line may lie anywhere, and so may what a file in a place of the
user's own names (`command.files.trusted_paths`); what any other file names has to lie below the
working folder. Of a run that this user made here every place is honoured, for the user named
it; of any other, those below the working folder and those that are named again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.files.trusted_paths import trust_command
from components.config.check import read_recipe
from components.config.part_nodes import find_spec
from components.config.recipe import Recipe
from components.config.schema.types import names_place
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from components.run.folder import RunFolder, existing_run_folder
from components.run.ownership import is_own

PATTERN = re.compile(r"[*?\[]")
NOWHERE = frozenset({"none", ""})
FOLDER = "data.folder"


def check_places(
    tree: Mapping[str, Any], named: UserOverrides, given: UserOverrides | None = None
) -> None:
    """Check every place that a recipe's sections name and the user does not.

    Of a recipe of the user's own, only those that a file beside it has ``given``.

    Raises:
        RecipeError: an absolute or climbing path, or one that a link leads out.
    """
    for path, text in _unnamed(tree, named):
        if given is None or given.covers(path.partition("[")[0]):
            refuse_outside(text, path)


def explain_received(error: RecipeError, files: Sequence[Path]) -> RecipeError:
    """Add to the refusal of a place whose it is, and the command that makes it the user's."""
    whose = " and ".join(file.name for file in files)
    problem = f"{error.problem}, and {whose} {'were' if files[1:] else 'was'} received"
    way = f"{error.remedy}, or make it your own: {trust_command(files)}"
    return RecipeError(error.path, problem, way)


def places_outside(tree: Mapping[str, Any], named: UserOverrides) -> dict[str, str]:
    """Return the places that lead out of the working folder and that the user does not name."""
    return {path: text for path, text in _unnamed(tree, named) if _leads_out(text)}


def refuse_outside(text: str, path: str) -> None:
    """Refuse a place that is not below the working folder once links are followed.

    Raises:
        RecipeError: it is not, or is no path.
    """
    if (how := _leads_out(text)) is not None:
        remedy = f"if you trust it, name it yourself: {path.partition('[')[0]}=..."
        raise RecipeError(path, f"{text!r} {how}", remedy)


def _leads_out(text: str) -> str | None:
    """Describe how a place leaves the working folder; nothing where it stays inside."""
    place = Path(text)
    if place.is_absolute() or text.startswith("~") or ".." in place.parts:
        return "leads out of the working folder"
    here = Path.cwd()
    plain = takewhile(lambda part: not PATTERN.search(part), place.parts)
    try:
        # What stands before a pattern first: a folder outside is not even listed.
        meant = chain([here.joinpath(*plain), here / place], here.glob(text))
        inside = all(one.resolve().is_relative_to(here.resolve()) for one in meant)
    except (ValueError, NotImplementedError, OSError, RuntimeError) as error:
        return f"is no path: {error}"
    return None if inside else "leads out of the working folder by a link"


def _unnamed(tree: Mapping[str, Any], named: UserOverrides) -> Iterator[tuple[str, str]]:
    """Yield every place that the tree names and the user does not, with its path."""
    for path, text in _places(tree, (), ""):
        if text not in NOWHERE and not named.covers(path.partition("[")[0]):
            yield path, text


def _places(
    value: object, location: tuple[Any, ...], path: str, *, marked: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the texts that name files or folders: the schema says which, or a constructor."""
    if isinstance(value, Mapping):
        node = value.get("_target_")
        for key, item in value.items():
            argument = node is not None and _takes_place(node, str(key), path)
            here = f"{path}.{key}" if path else str(key)
            yield from _places(item, (*location, key), here, marked=marked or argument)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _places(item, (*location, index), f"{path}[{index}]", marked=marked)
    elif isinstance(value, str) and (marked or names_place(Recipe, location)):
        yield path, value


def _takes_place(target: object, key: str, path: str) -> bool:
    return find_spec(target, f"{path}._target_").names_place(key)


def check_run_places(folder: RunFolder, recipe: Recipe, arguments: Arguments) -> None:
    """Refuse, before a run goes on, places outside that are not the user's own words.

    Raises:
        RecipeError: the first such place of the recipe.
    """
    try:
        if not is_own(folder.recipe):
            check_places(recipe.model_dump(mode="json"), UserOverrides(arguments.values))
    except RecipeError as error:
        raise _theirs(folder, error) from None


def check_data_place(folder: RunFolder, recipe: Recipe, values: Mapping[str, Any]) -> None:
    """Refuse to read prepared data outside that are not the user's own words.

    Raises:
        RecipeError: the recipe's ``data.folder`` leads out, or the data lie elsewhere.
    """
    if error := strange_data(folder, recipe, values):
        raise error


def strange_data(
    folder: RunFolder, recipe: Recipe, values: Mapping[str, Any]
) -> RecipeError | None:
    """Describe why the prepared data of a run are not read, if they are not.

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


def named_runs(arguments: Arguments) -> list[Path]:
    """List the run folders that are named; a folder of run folders stands for all of them.

    Raises:
        RecipeError: none is named, or there is none.
    """
    named = [*arguments.runs, *([arguments.run] if arguments.run else [])]
    if not named:
        raise RecipeError("run", "no run is named", "write run=FOLDER, or runs=[FOLDER,...]")
    found: list[Path] = []
    for folder in named:
        inside = sorted(file.parent for file in folder.glob("*/recipe.json"))
        alone = (folder / "recipe.json").is_file() or not inside
        found += [folder] if alone else inside
    return [existing_run_folder(one).path for one in found]


def open_run(run: Path | None, values: Mapping[str, Any]) -> tuple[RunFolder, Recipe]:
    """Open ``run=FOLDER`` and read its recipe; no checkpoint is touched.

    Raises:
        RecipeError: no run is named, it is none, or its data are not where the user says.
    """
    if run is None:
        remedy = "write run=FOLDER"
        raise RecipeError("run", "no run is named, and a recipe alone has no weights", remedy)
    folder = existing_run_folder(run)
    recipe = read_recipe(folder.recipe)
    check_data_place(folder, recipe, values)
    return folder, recipe
