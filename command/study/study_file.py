"""Check a study's file: its fields, and that its parts name one another rightly."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from command.study.schema import Interval, ListedStudy, SearchStudy, Study, Value, has_values
from components.config.schema.recipe import Recipe, read_section
from components.errors import RecipeError

SECTIONS = frozenset(Recipe.model_fields)
# What a study may say of the machine: how much of it. The rest would reach job scripts.
OF_CLUSTER = frozenset({"nodes", "ranks", "hours", "jobs", "smoke"})
KINDS = ("space", "points", "grid")
MOST_POINTS = 1_000  # a grid multiplies: a stranger's could be endless


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
        mistakes = _mistakes_of_searched(study)
    else:
        study = read_section(
            ListedStudy, _spread_grid(tree, where) if given == ["grid"] else tree, where
        )
        mistakes = _mistakes_of_listed(study)
    for path, problem, remedy in itertools.chain(_mistakes(study, given[0]), mistakes):
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


def _mistakes_of_searched(study: SearchStudy) -> Iterator[tuple[str, str, str]]:
    """Yield path, problem and remedy of what the parts of the study get wrong together."""
    for key, values in study.space.items():
        if not isinstance(values, Interval):
            continue
        lowest = 0.0 if values.log else -math.inf
        if not lowest < values.low < values.high:
            problem = f"{values.low:g} to {values.high:g} is no interval"
            yield f"space.{key}", problem, "low is below high, and above 0 with log: true"
    used = {factor for factors in study.products.values() for factor in factors}
    for key in study.space.keys() - used:
        if "." not in key:
            problem = "is neither a key of a recipe nor a factor of a product"
            yield f"space.{key}", problem, "write the whole key, as optimizer.lr"
    for key in study.products:
        if "." not in key:
            problem = f"{key!r} is no key that a study may set"
            yield f"products.{key}", problem, "a key of a recipe, as budget.total_tokens"


def _spread_grid(tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Write ``grid``, lists of values by key, as ``points``; the last key changes fastest."""
    grid = tree["grid"]
    if not isinstance(grid, dict) or not grid:
        raise RecipeError(f"{where}.grid", f"{grid!r} is no mapping", "write KEY: [1, 2, 4]")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            problem = f"{values!r} is no list of values"
            raise RecipeError(f"{where}.grid.{key}", problem, f"write {key}: [1, 2, 4]")
    count = math.prod(len(values) for values in grid.values())
    if count > MOST_POINTS:
        problem = f"{count:,} points, more than {MOST_POINTS:,}"
        raise RecipeError(f"{where}.grid", problem, "search them: write space and search")
    points = [dict(zip(grid, one, strict=True)) for one in itertools.product(*grid.values())]
    return {**{key: value for key, value in tree.items() if key != "grid"}, "points": points}


def _mistakes_of_listed(study: ListedStudy) -> Iterator[tuple[str, str, str]]:
    """Yield path, problem and remedy of what the parts of the study get wrong together."""
    first, *others = study.points
    for index, point in enumerate(others, start=1):
        if point.keys() != first.keys():
            yield f"points[{index}]", "has other keys than the first point", "name all keys"
        if point in study.points[:index]:
            yield f"points[{index}]", "is given twice", "keep it once"
    named = {f"published.values[{i}].at": q.at for i, q in enumerate(study.published.values)}
    if study.baseline:
        named["baseline"] = study.baseline
    for path, at in named.items():
        count = sum(has_values(point, at) for point in study.points)
        if count != 1:
            problem = f"{count} points have {dict(at)}"
            yield path, problem, "name what tells one point from the others"
    yield from _undrawn(study, {**first, **study.products})


def _undrawn(study: ListedStudy, known: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Report what the figure names and no point has, and names that nothing uses."""
    figure = study.figure
    for name in ("x", "series"):
        for key in getattr(figure, name):
            if key not in known:
                yield f"figure.{name}", f"no point has {key!r}", f"known: {', '.join(known)}"
    used = {f for factors in study.products.values() for f in factors}
    for key in known.keys() - used - {*figure.x, *figure.series, "recipe"}:
        if "." not in key:
            problem = f"{key!r} is no key of a recipe, and no product or figure uses it"
            yield f"points.{key}", problem, "write the whole key, as optimizer.lr"
    if "x" in figure.log and all(key in known for key in figure.x):
        values = [study.shown(point).get(figure.x[0]) for point in study.points]
        numbers = [v for v in values if isinstance(v, int | float) and v is not True]
        if len(figure.x) > 1 or len(numbers) < len(values) or min(numbers) <= 0:
            problem = "a logarithmic axis needs one key of positive numbers"
            yield "figure.log", problem, "name one such key as figure.x, or leave x out"
