"""Read and check whole recipes: fields first, then the rules between fields."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.config.part_nodes import NAMED, SECTIONS, check_nodes
from components.config.phases import check_phases, check_starts
from components.config.recipe import Recipe
from components.config.rules.check import check_rules
from components.config.schema.earlier_names import update_names
from components.config.schema.phases import RunPhase
from components.config.schema.types import Section, to_frozen
from components.config.start import check_beginning
from components.config.validation import read_section
from components.errors import RecipeError
from components.json_file import read_mapping


def read_recipe(file: Path) -> Recipe:
    """Load the frozen recipe of a run folder, or raise a RecipeError that names the file."""
    tree = update_names(read_mapping(file))
    try:
        return check_recipe(tree)
    except RecipeError as error:
        raise RecipeError(f"{file}: {error.path}", error.problem, error.remedy) from None


def check_recipe(tree: Mapping[str, Any]) -> Recipe:
    """Check a resolved tree: targets, fields, then rules; return the recipe."""
    return _check_rules(read_fields(tree))


def read_fields(tree: Mapping[str, Any]) -> Recipe:
    """Validate the ``_target_`` classes and all fields of a tree, without the rules."""
    check_nodes(tree)
    for section in SECTIONS:
        node = tree.get(section)
        if isinstance(node, Mapping) and not node.keys() & {"_target_", "phases"}:
            remedy = f"choose a file of conf/{section}/: {section}=NAME"
            raise RecipeError(section, "missing _target_", remedy)
    for section in NAMED:
        for name, node in (tree.get(section) or {}).items():
            if isinstance(node, Mapping) and "_target_" not in node:
                path = f"{section}.{name}"
                raise RecipeError(path, "missing _target_", f"set {path}._target_=...")
    return read_section(Recipe, tree, "")


def change_recipe(recipe: Recipe, sections: Mapping[str, Any]) -> Recipe:
    """Replace whole sections of a recipe; validate only these, then check all rules."""
    check_nodes(sections)
    values = {key: _read_section(key, value) for key, value in sections.items()}
    changed = recipe.model_copy(update=values)
    for name in changed.__dict__.keys() - Recipe.model_fields.keys():
        del changed.__dict__[name]  # cached values of the old sections
    return _check_rules(changed)


def _read_section(key: str, value: Any) -> object:
    """Validate one section: a section class, ``phases``, or a node with ``_target_``."""
    kind = Recipe.model_fields[key].annotation
    if isinstance(kind, type) and issubclass(kind, Section):
        return read_section(kind, value, key)
    if key == "phases":
        return to_frozen({
            name: read_section(RunPhase, phase, f"phases.{name}")
            for name, phase in value.items()
        })
    return to_frozen(value)


def _check_rules(recipe: Recipe) -> Recipe:
    check_beginning(recipe)
    check_starts(recipe)
    check_rules(recipe)
    check_phases(recipe)
    return recipe
