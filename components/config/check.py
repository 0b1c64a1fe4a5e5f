"""Read and check whole recipes: fields first, then the rules between fields."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.config.parent import check_beginning
from components.config.part_nodes import check_nodes
from components.config.phases import check_phases, check_starts
from components.config.recipe import Recipe
from components.config.rules.check import check_rules
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
    check_nodes(tree)
    recipe = read_section(Recipe, tree, "")
    check_beginning(recipe)
    check_starts(recipe)
    check_rules(recipe)
    check_phases(recipe)
    return recipe
