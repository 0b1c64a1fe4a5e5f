"""The answer to `~key`, which is tried on the recipe first."""

from collections.abc import Mapping, Sequence
from typing import Any

from command.arguments import groups, read_point
from command.compose import compose_recipe
from command.hydra_words import plain_words
from command.recipe.recipe_file import find_target
from command.sweep import split_sweep
from components.config.user_overrides import OPEN
from components.errors import RecipeError

# What switches a value of a type off, if anything does.
NEUTRAL: Mapping[type, tuple[str, ...]] = {
    bool: ("false",),
    int: ("0", "none"),
    float: ("0.0", "none"),
    list: ("[]",),
}
NONE = "none"


def removal_of(key: str, words: Sequence[str]) -> RecipeError:
    """Say what removes a key, or what it does; a value that is offered has been tried.

    ``words`` are the others of the command.
    """
    if key in (known := groups()):
        return RecipeError(
            f"~{key}", "a group has one option at a time", _options(key, known[key])
        )
    for mapping in OPEN:
        if key.startswith(f"{mapping}."):
            way = f"write {mapping}={{...}} with all that stays: it replaces what is there"
            return RecipeError(f"~{key}", "keys are not removed one by one", way)
    point = split_sweep(plain_words(words) or [])[1][0]
    kept = find_target(compose_recipe(read_point(point)).model_dump(mode="json"), key)
    problem = f"keys are not removed, and {key} is {_short(kept)} here"
    for text in NEUTRAL.get(type(kept), (NONE,)):
        word = f"{key}={text}"
        try:
            compose_recipe(read_point([*point, word]))
        except RecipeError as error:
            if kept is None:
                return error  # no such key
        else:
            return RecipeError(f"~{key}", problem, f"write {word}, which switches it off")
    way = f"write {key}=VALUE: no value of it means nothing; leaving it out keeps that one"
    return RecipeError(f"~{key}", problem, way)


def _options(group: str, options: Sequence[str]) -> str:
    if NONE in options:
        return f"write {group}={NONE}"
    return f"write {group}=OPTION; known: {', '.join(options)}"


def _short(value: Any) -> str:
    return "a mapping" if isinstance(value, Mapping) else f"{value!r}"
