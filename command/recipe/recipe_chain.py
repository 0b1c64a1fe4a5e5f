"""A recipe with those that it starts from, each read and checked as data; the weakest first.

``defaults`` names a recipe of this repository or of the private folder by its stem, a file by
``./`` or ``../`` and a path that counts from the file that names it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from command.files.trusted_paths import (
    RECIPE,
    find_option,
    is_trusted,
    option_names,
    real_path,
)
from command.files.yaml_file import ReceivedYaml, read_data
from command.recipe import replacement
from command.recipe.recipe_file import OVERRIDE, check_recipe_file, is_beside
from components.config.suggestions import nearest
from components.errors import RecipeError

MOST_FILES = 30
TOO_MANY = f"a recipe starts from more than {MOST_FILES} files"
FILE_NAME = re.compile(r"[\w-]+")
Tree = dict[str, Any]


@dataclass(frozen=True)
class RecipeChain:
    """The files in the order of their merging, and the options of groups that they choose."""

    files: tuple[ReceivedYaml, ...]
    options: Mapping[str, str]

    @property
    def sections(self) -> list[Tree]:
        """What each file says, without its defaults and marks."""
        return [replacement.without_marks(_sections(sent)) for sent in self.files]

    @property
    def merged(self) -> Tree:
        """What the files say together, with marks."""
        merged: Tree = reduce(replacement.merge, map(_sections, self.files), {})
        return merged


def _sections(sent: ReceivedYaml) -> Tree:
    return {key: value for key, value in sent.tree.items() if key != "defaults"}


def read_named(name: str | None) -> RecipeChain:
    """Read the recipe of a name.

    Raises:
        RecipeError: there is none, or it is wrong; with the nearest names or the line.
    """
    known = option_names(RECIPE)
    if name is None:
        raise RecipeError(RECIPE, "no recipe is named", f"recipe=NAME; {nearest('', known)}")
    if name not in known:
        raise RecipeError(RECIPE, f"there is no recipe {name!r}", _way_out(name, known))
    return read_chain(read_data(find_option(RECIPE, name), RECIPE))


def _way_out(name: str, known: list[str]) -> str:
    if not FILE_NAME.fullmatch(name):
        return "the path of a file ends in .yaml"
    if Path(f"{name}.yaml").is_file():
        return f"write recipe=./{name}.yaml"
    if (file := find_option(RECIPE, name)).is_file():
        return f"a name has a-z, 0-9 and _: rename {file}, or write recipe={file}"
    return f"{nearest(name, known)} (the path of a file ends in .yaml)"


def read_chain(sent: ReceivedYaml) -> RecipeChain:
    """Check a recipe that was read, and read and check what it starts from.

    Raises:
        RecipeError: a file is wrong, missing or lies where it may not, a recipe starts from
            itself, or the files are too many.
    """
    read: list[ReceivedYaml] = []
    options: dict[str, str] = {}
    for one in _follow(sent, (), options):
        read.append(one)
        if len(read) > MOST_FILES:
            raise sent.told(RecipeError("defaults", TOO_MANY, "merge some of them"))
    return RecipeChain(tuple(read), options)


def _follow(
    sent: ReceivedYaml, above: tuple[Path, ...], options: dict[str, str]
) -> Iterator[ReceivedYaml]:
    """Yield the files of a chain, weakest first, and gather the options that they choose."""
    check_recipe_file(sent)
    way = (*above, real_path(sent.file))
    entries = sent.tree.get("defaults", [])
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            yield sent
        elif isinstance(entry, str):
            yield from _follow(_read_start(sent, entry, way), way, options)
    for entry in entries:
        if isinstance(entry, Mapping):
            options |= {key.removeprefix(OVERRIDE): one for key, one in entry.items()}


def _read_start(sent: ReceivedYaml, entry: str, way: tuple[Path, ...]) -> ReceivedYaml:
    """Read what a file starts from; ``way`` leads to that file."""
    try:
        if is_beside(entry):
            file = way[-1].parent / (entry if entry.endswith(".yaml") else f"{entry}.yaml")
            refuse_elsewhere(file, sent.file)
        else:
            file = find_option(RECIPE, entry)
        _refuse_circle(real_path(file), way)
        return read_data(file, "defaults")
    except RecipeError as error:
        raise sent.told(error) if error.path == "defaults" else error from None


def _refuse_circle(real: Path, way: tuple[Path, ...]) -> None:
    if real in way:
        names = " -> ".join(file.name for file in (*way[way.index(real) :], real))
        remedy = "take one of them out of a defaults list"
        raise RecipeError("defaults", f"a recipe starts from itself: {names}", remedy)
    if len(way) >= MOST_FILES:
        raise RecipeError("defaults", TOO_MANY, "merge some of them")


def refuse_elsewhere(file: Path, recipe: Path) -> None:
    """Refuse what a received recipe starts from, unless it lies with it or in the work folder.

    Raises:
        RecipeError: it leads out of both, once links are followed.
    """
    real, places = real_path(file), (real_path(recipe).parent, real_path(Path.cwd()))
    if not any(map(real.is_relative_to, places)) and not is_trusted(recipe):
        problem = f"{file} leads out of the folder of {recipe.name}, which was received"
        raise RecipeError("defaults", problem, "if you trust it, copy it beside that recipe")
