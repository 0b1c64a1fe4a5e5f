"""Choices and words that a file gives (a lock, a study, a run): data, never the user's."""

from collections.abc import Mapping
from dataclasses import replace

from command.arguments import Arguments, check_option, groups
from command.places import refuse_outside
from components.errors import RecipeError
from components.spec.targets import nearest

NAMED_APART = frozenset({"recipe"})  # a group of conf/, but no choice among others


def check_choices(choices: Mapping[str, object], path: str) -> dict[str, str]:
    """Return the options of groups that a file chooses, if ``conf/`` has them.

    Raises:
        RecipeError: there is no such group or option; anything else would reach Hydra.
    """
    known = {group: one for group, one in groups().items() if group not in NAMED_APART}
    for group, option in choices.items():
        if group not in known:
            remedy = nearest(group, list(known))
            raise RecipeError(f"{path}.{group}", "there is no such group", remedy)
        try:
            check_option(group, option, known[group])
        except RecipeError as error:
            raise RecipeError(f"{path}.{group}", error.problem, error.remedy) from None
    return {group: str(option) for group, option in choices.items()}


def check_recipe_place(recipe: str, path: str) -> str:
    """Return the name of a recipe, or its path if that stays below the working folder.

    Raises:
        RecipeError: it leads out, or is a path to no YAML file.
    """
    if recipe.endswith(".yaml"):
        refuse_outside(recipe, path)
    elif "/" in recipe:
        raise RecipeError(path, f"{recipe!r} is no recipe's name", "a path ends in .yaml")
    return recipe


def as_received(arguments: Arguments) -> Arguments:
    """Take words that a file gave as the file's: its values, and nothing of the user's site."""
    return replace(arguments, values={}, file_values=arguments.all_values, site={})
