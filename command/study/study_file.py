"""A study: one file that says which runs to make of a recipe, and what to look for in them.

It searches a ``space``, or lists its ``points``.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from command.study.listed_points import ListedStudy, mistakes_of_listed, spread_grid
from command.study.schema import SearchStudy, Study, Value, mistakes_of_searched
from components.config.schema.recipe import Recipe, read_section
from components.errors import RecipeError

SECTIONS = frozenset(Recipe.model_fields)
# What a study may say of the machine: how much of it. The rest would reach job scripts.
OF_CLUSTER = frozenset({"nodes", "ranks", "hours", "jobs", "smoke"})
KINDS = ("space", "points", "grid")


def check_study(tree: Mapping[str, object], where: str) -> SearchStudy | ListedStudy:
    """Check a study's fields, and that its parts name one another rightly.

    Raises:
        RecipeError: an unknown or missing field, no points or two kinds of them, an interval
            without an inside, a factor that is no whole number of the points, a key that is
            set twice, a figure or a published value of no point, text that
            no terminal should be given.
    """
    given = [kind for kind in KINDS if kind in tree]
    if len(given) != 1:
        problem = f"has {' and '.join(given) or 'nothing to try'}"
        raise RecipeError(where, problem, f"keep one of {', '.join(KINDS)}")
    study: SearchStudy | ListedStudy
    if given == ["space"]:
        study = read_section(SearchStudy, tree, where)
        mistakes = mistakes_of_searched(study)
    else:
        study = read_section(
            ListedStudy, spread_grid(tree, where) if given == ["grid"] else tree, where
        )
        mistakes = mistakes_of_listed(study)
    for path, problem, remedy in chain(_mistakes(study, given[0]), mistakes):
        raise RecipeError(f"{where}.{path}", problem, remedy)
    return study


def varied(study: SearchStudy | ListedStudy) -> dict[str, tuple[Value, ...] | None]:
    """Give the values that each key takes; none for an interval."""
    if isinstance(study, ListedStudy):
        keys = dict.fromkeys(key for point in study.points for key in point)
        return {key: tuple(p[key] for p in study.points if key in p) for key in keys}
    return {
        key: values if isinstance(values, tuple) else None
        for key, values in study.space.items()
    }


def _mistakes(study: SearchStudy | ListedStudy, kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield what either kind gets wrong."""
    space = varied(study)
    for factor in {factor for factors in study.products.values() for factor in factors}:
        listed = space.get(factor) if isinstance(factor, str) else (factor,)
        if listed is None or not all(type(value) is int for value in listed):
            problem = f"the factor {factor!r} is no key of whole numbers in the {kind}"
            yield "products", problem, f"list its values under {kind}"
    for path, text in _texts(study.model_dump(mode="json")):
        if not text.replace("\n", "").isprintable():
            yield path, f"{text!r} has characters that act on a terminal", "write plain text"
    for key in study.set.keys() & SECTIONS:
        problem = "is a whole section, or a group of options"
        yield f"set.{key}", problem, f"write the keys, or {key}=... beside the study"
    for key in _foreign(study, space):
        problem = "is no key that a study may set"
        yield key, problem, "a key of a recipe, or cluster.nodes, ranks, hours, jobs, smoke"
    keys = (study.set.keys(), space.keys(), study.products.keys())
    for key in (keys[0] & keys[1]) | (keys[0] & keys[2]) | (keys[1] & keys[2]):
        yield key, "is set twice", f"keep it under one of set, {kind} and products"


def _texts(tree: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a study, the names of keys included, and where it is."""
    if isinstance(tree, str):
        yield path, tree
    parts: Iterable[tuple[object, object]] = tree.items() if isinstance(tree, dict) else ()
    for step, item in enumerate(tree) if isinstance(tree, list) else parts:
        yield path or "names", str(step)
        yield from _texts(item, f"{path}.{step}" if path else str(step))


def _foreign(study: Study, space: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys that are no recipe's, and those of the machine's profile."""
    dotted = (key for key in (*space, *study.products) if "." in key)
    for key in (*study.set, *dotted):
        section, _, name = key.partition(".")
        if section not in SECTIONS or (section == "cluster" and name not in OF_CLUSTER):
            yield key
