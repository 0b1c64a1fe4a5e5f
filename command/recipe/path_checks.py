"""Path checks: allowed paths of received files and run folders; the runs that a command names.

Paths on the command line, in the user's own files (`command.files.trusted_paths`) and in runs
that this user made here may point anywhere. All other paths must be below the working folder,
unless the user names them again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.files.trusted_paths import recipes_folder
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
    """Refuse outside paths (absolute, with ``..``, by a link) that the user does not name.

    With ``given``, as for the user's own recipe, check only the keys that another file set.
    """
    for path, text in _unnamed(tree, named):
        if given is None or given.is_overridden(path.partition("[")[0]):
            refuse_outside(text, path)


def explain_received(error: RecipeError, files: Sequence[Path]) -> RecipeError:
    """Add the received files' names and the trusted folder to a refusal."""
    whose = " and ".join(file.name for file in files)
    problem = f"{error.problem}, and {whose} {'were' if files[1:] else 'was'} received"
    fix = f"{error.remedy}, or trust the file: move it to {recipes_folder()}"
    return RecipeError(error.path, problem, fix)


def places_outside(tree: Mapping[str, Any], named: UserOverrides) -> dict[str, str]:
    """Return the paths outside the working folder that the user does not name."""
    return {path: text for path, text in _unnamed(tree, named) if _leads_out(text)}


def refuse_outside(text: str, path: str) -> None:
    """Refuse a path that leads, through links or not, outside the working folder."""
    if (how := _leads_out(text)) is not None:
        remedy = f"if you trust it, set {path.partition('[')[0]}=..."
        raise RecipeError(path, f"{text!r} {how}", remedy)


def _leads_out(text: str) -> str | None:
    """Return how a path leaves the working folder, or None if it stays inside."""
    place = Path(text)
    if place.is_absolute() or text.startswith("~") or ".." in place.parts:
        return "leads out of the working directory"
    here = Path.cwd()
    plain = takewhile(lambda part: not PATTERN.search(part), place.parts)
    try:
        # The part before a wildcard first: a folder outside must not even be listed.
        meant = chain([here.joinpath(*plain), here / place], here.glob(text))
        inside = all(candidate.resolve().is_relative_to(here.resolve()) for candidate in meant)
    except (ValueError, NotImplementedError, OSError, RuntimeError) as error:
        return f"is not a valid path: {error}"
    return None if inside else "leads out of the working directory by a link"


def _unnamed(tree: Mapping[str, Any], named: UserOverrides) -> Iterator[tuple[str, str]]:
    """Yield YAML path and text of the file paths that the user does not name."""
    for path, text in _places(tree, (), ""):
        if text not in NOWHERE and not named.is_overridden(path.partition("[")[0]):
            yield path, text


def _places(
    value: object, location: tuple[Any, ...], path: str, *, marked: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the texts that name files or folders, according to the schema or a constructor."""
    if isinstance(value, Mapping):
        node = value.get("_target_")
        for key, item in value.items():
            spec = None if node is None else find_spec(node, f"{path}._target_")
            argument = spec is not None and spec.names_place(str(key))
            here = f"{path}.{key}" if path else str(key)
            yield from _places(item, (*location, key), here, marked=marked or argument)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _places(item, (*location, index), f"{path}[{index}]", marked=marked)
    elif isinstance(value, str) and (marked or names_place(Recipe, location)):
        yield path, value


def check_run_places(folder: RunFolder, recipe: Recipe, arguments: Arguments) -> None:
    """Refuse outside paths before a run continues, unless the user names them."""
    try:
        if not is_own(folder.recipe):
            check_places(recipe.model_dump(mode="json"), UserOverrides(arguments.values))
    except RecipeError as error:
        raise _theirs(folder, error) from None


def check_data_place(folder: RunFolder, recipe: Recipe, values: Mapping[str, Any]) -> None:
    """Refuse prepared data outside the working folder, unless the user names their folder."""
    if error := untrusted_data(folder, recipe, values):
        raise error


def untrusted_data(
    folder: RunFolder, recipe: Recipe, values: Mapping[str, Any]
) -> RecipeError | None:
    """Return the reason why a run's prepared data may not be read, or None."""
    if not (folder.path / "data.json").exists():
        return None
    place, wanted = Path(folder.data_record.folder), str(values.get(FOLDER, recipe.data.folder))
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
    problem = f"{place} is not inside {FOLDER}={wanted}"
    remedy = f"if you trust it, set {FOLDER}={place.parent}"
    return _theirs(folder, RecipeError(str(folder.path / "data.json"), problem, remedy))


def _theirs(folder: RunFolder, error: RecipeError) -> RecipeError:
    problem = f"{error.problem}, and {folder.path} was received"
    return RecipeError(error.path, problem, error.remedy)


def named_runs(arguments: Arguments) -> list[Path]:
    """List the named run folders. A folder of run folders yields all of them."""
    named = [*arguments.runs, *([arguments.run] if arguments.run else [])]
    if not named:
        raise RecipeError("run", "a run is required", "write run=FOLDER, or runs=[FOLDER,...]")
    folders: list[Path] = []
    for folder in named:
        inside = sorted(file.parent for file in folder.glob("*/recipe.json"))
        alone = (folder / "recipe.json").is_file() or not inside
        folders += [folder] if alone else inside
    return [existing_run_folder(folder).path for folder in folders]


def open_run(run: Path | None, values: Mapping[str, Any]) -> tuple[RunFolder, Recipe]:
    """Open ``run=FOLDER`` and read its recipe; check where its data are; open no checkpoint."""
    if run is None:
        remedy = "write run=FOLDER"
        raise RecipeError("run", "a run is required: a recipe has no weights", remedy)
    folder = existing_run_folder(run)
    recipe = read_recipe(folder.recipe)
    check_data_place(folder, recipe, values)
    return folder, recipe
