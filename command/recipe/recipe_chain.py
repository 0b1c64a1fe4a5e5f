"""Read a recipe and the recipes that it starts from, checked as data, weakest first.

An entry of ``defaults`` is the stem of a recipe in this repository or the private folder, or a
path with ``./`` or ``../`` relative to the file with the entry.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from command.files.trusted_paths import RECIPE, find_option, is_trusted, option_names, real_path
from command.files.yaml_file import ReceivedYaml, read_sections
from command.recipe import replacement
from command.recipe.recipe_file import OVERRIDE, check_recipe_file, is_relative
from components.config.suggestions import suggest_similar
from components.errors import RecipeError

MOST_FILES = 30
TOO_MANY = f"a recipe starts from more than {MOST_FILES} files"
YamlTree = dict[str, Any]


@dataclass(frozen=True)
class RecipeChain:
    """The files in merge order, and the group options that they choose."""

    files: tuple[ReceivedYaml, ...]
    options: Mapping[str, str]

    @property
    def merged_tree(self) -> YamlTree:
        """The merged content of the files, without defaults, with replacement marks."""
        trees = ({**sent.tree, "defaults": None} for sent in self.files)
        merged: YamlTree = reduce(replacement.merge_values, trees, {})
        return {key: value for key, value in merged.items() if key != "defaults"}


def read_named(name: str | None) -> RecipeChain:
    """Read the recipe with a name; an error has the nearest names, or the line."""
    known = option_names(RECIPE)
    if name is None:
        raise RecipeError(
            RECIPE, "a recipe is required", f"write recipe=NAME; {suggest_similar('', known)}"
        )
    if name not in known:
        fix = f"{suggest_similar(name, known)} (a file path must end in .yaml)"
        raise RecipeError(RECIPE, f"unknown recipe: {name!r}", fix)
    return read_chain(read_sections(find_option(RECIPE, name), RECIPE))


def read_chain(sent: ReceivedYaml) -> RecipeChain:
    """Check a recipe file, and read and check the files that it starts from."""
    read: list[ReceivedYaml] = []
    options: dict[str, str] = {}
    for file in _follow(sent, (), options):
        read.append(file)
        if len(read) > MOST_FILES:
            raise sent.locate_error(RecipeError("defaults", TOO_MANY, "merge some of them"))
    return RecipeChain(tuple(read), options)


def _follow(
    sent: ReceivedYaml, above: tuple[Path, ...], options: dict[str, str]
) -> Iterator[ReceivedYaml]:
    """Yield the files of a chain, weakest first, and add their group options to ``options``."""
    check_recipe_file(sent)
    files_above = (*above, real_path(sent.file))
    entries = sent.tree.get("defaults", [])
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            yield sent
        elif isinstance(entry, str):
            yield from _follow(_read_start(sent, entry, files_above), files_above, options)
    for entry in entries:
        if isinstance(entry, Mapping):
            options |= {key.removeprefix(OVERRIDE): option for key, option in entry.items()}


def _read_start(sent: ReceivedYaml, entry: str, chain: tuple[Path, ...]) -> ReceivedYaml:
    """Read the file that a defaults entry names; ``chain`` has the files that lead to it."""
    try:
        if is_relative(entry):
            file = chain[-1].parent / (entry if entry.endswith(".yaml") else f"{entry}.yaml")
            refuse_elsewhere(file, sent.file)
        else:
            file = find_option(RECIPE, entry)
        _refuse_circle(real_path(file), chain)
        return read_sections(file, "defaults")
    except RecipeError as error:
        raise sent.locate_error(error) if error.path == "defaults" else error from None


def _refuse_circle(real: Path, chain: tuple[Path, ...]) -> None:
    if real in chain:
        names = " -> ".join(file.name for file in (*chain[chain.index(real) :], real))
        remedy = "remove one of them from its defaults list"
        raise RecipeError("defaults", f"a recipe starts from itself: {names}", remedy)
    if len(chain) >= MOST_FILES:
        raise RecipeError("defaults", TOO_MANY, "merge some of them")


def refuse_elsewhere(file: Path, recipe: Path) -> None:
    """Refuse a parent that is, with links followed, outside recipe's and working folder."""
    real, places = real_path(file), (real_path(recipe).parent, real_path(Path.cwd()))
    if not any(map(real.is_relative_to, places)) and not is_trusted(recipe):
        problem = f"{file} leads out of the folder of {recipe.name}, which was received"
        raise RecipeError("defaults", problem, "if you trust it, copy it into that folder")
