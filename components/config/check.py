"""Read and check whole recipes: fields first, then the rules between fields."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.config.part_nodes import NAMED, SECTIONS, check_nodes
from components.config.phases import check_phases, check_starts
from components.config.recipe import Recipe
from components.config.rules.check import check_rules
from components.config.schema.phases import RunPhase
from components.config.schema.types import Section, freeze
from components.config.start import check_beginning
from components.config.validation import read_section
from components.errors import RecipeError
from components.json_file import read_mapping


def read_recipe(file: Path) -> Recipe:
    """Load the frozen recipe of a run folder, or raise a RecipeError that names the file."""
    tree = read_mapping(file)
    try:
        return check_recipe(tree)
    except RecipeError as error:
        raise RecipeError(f"{file}: {error.path}", error.problem, error.remedy) from None


def check_recipe(tree: Mapping[str, Any]) -> Recipe:
    """Check a settled tree: targets, fields, then rules; a RecipeError says what is wrong."""
    return _check_rules(read_fields(tree))


def read_fields(tree: Mapping[str, Any]) -> Recipe:
    """Validate the classes that a tree names, and every field; no rule between fields.

    Raises:
        RecipeError: with the YAML path of the first that is wrong.
    """
    check_nodes(tree)
    for section in SECTIONS:
        node = tree.get(section)
        if isinstance(node, Mapping) and not node.keys() & {"_target_", "phases"}:
            remedy = f"choose a file of conf/{section}/: {section}=NAME"
            raise RecipeError(section, "names no class", remedy)
    for section in NAMED:
        for name, node in (tree.get(section) or {}).items():
            if isinstance(node, Mapping) and "_target_" not in node:
                path = f"{section}.{name}"
                raise RecipeError(path, "names no class", f"set {path}._target_=...")
    return read_section(Recipe, tree, "")


def change_recipe(recipe: Recipe, sections: Mapping[str, Any]) -> Recipe:
    """Replace whole sections of a recipe by trees; validate these alone, then check all rules.

    Raises:
        RecipeError: a section or a rule between fields is wrong.
    """
    check_nodes(sections)
    values = {key: _read_section(key, value) for key, value in sections.items()}
    changed = recipe.model_copy(update=values)
    for name in changed.__dict__.keys() - Recipe.model_fields.keys():
        del changed.__dict__[name]  # numbers that followed from the sections before
    return _check_rules(changed)


def _read_section(key: str, value: Any) -> object:
    """Validate one section: a class of its own, phases, or a node that names its class."""
    kind = Recipe.model_fields[key].annotation
    if isinstance(kind, type) and issubclass(kind, Section):
        return read_section(kind, value, key)
    if key == "phases":
        return freeze({
            name: read_section(RunPhase, phase, f"phases.{name}")
            for name, phase in value.items()
        })
    return freeze(value)


def _check_rules(recipe: Recipe) -> Recipe:
    check_beginning(recipe)
    check_starts(recipe)
    check_rules(recipe)
    check_phases(recipe)
    return recipe
