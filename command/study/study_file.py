"""Check a study's file, and write the points of its table or grid out.

A table is one of measurements that others published, in ``benchmarks/data``.
"""

import csv
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from command.arguments import ROOT
from command.study import schema
from command.study.ladder_points import spread_ladder
from command.study.schema import (
    CitedRows,
    Column,
    Interval,
    LadderStudy,
    ListedStudy,
    SearchStudy,
    Value,
)
from components.config.recipe import Recipe
from components.config.schema.types import fields_of
from components.config.suggestions import nearest
from components.config.validation import read_section
from components.errors import RecipeError

SECTIONS = frozenset(fields_of(Recipe))
# What a study may say of the machine: how much of it. The rest would reach job scripts.
OF_CLUSTER = frozenset({"nodes", "ranks", "hours", "jobs", "smoke"})
KINDS = ("space", "points", "grid", "ladder")
FIELDS = {*KINDS, "table", *fields_of(SearchStudy), *fields_of(LadderStudy)}
MOST_POINTS = 1_000  # a grid multiplies: a stranger's could be endless
TABLES = ROOT / "benchmarks" / "data"
Cells = Mapping[str, str]
Mistakes = Iterator[tuple[str, str, str]]  # path, problem and remedy


def check_study(tree: dict[str, Any], where: str) -> SearchStudy | ListedStudy:
    """Check a study's fields, and that its parts name one another rightly.

    Raises:
        RecipeError: a field is unknown or missing, a key is set twice, or points, products,
            figure, published values and table do not fit one another.
    """
    if "table" in tree:
        tree = _with_cited(tree, where)
    given = [kind for kind in KINDS if kind in tree]
    if len(given) != 1:
        unknown = [f"; unknown key: {key}" for key in tree if key not in FIELDS]
        problem = "".join([f"has {' and '.join(given) or 'nothing to try'}", *unknown])
        raise RecipeError(where, problem, f"keep one of {', '.join(KINDS)}")
    if given == ["grid"]:
        tree = _spread_grid(tree, where)
    if given == ["ladder"]:
        tree = spread_ladder(tree, where)
    study: SearchStudy | ListedStudy
    if given == ["space"]:
        study = read_section(SearchStudy, tree, where)
        mistakes = _mistakes_of_searched(study)
    else:
        study = read_section(LadderStudy if given == ["ladder"] else ListedStudy, tree, where)
        mistakes = _mistakes_of_listed(study)
    for path, problem, remedy in itertools.chain(
        _mistakes(study, given[0]), _quoted(study), mistakes
    ):
        raise RecipeError(f"{where}.{path}", problem, remedy)
    return study


def varied(study: SearchStudy | ListedStudy) -> dict[str, tuple[Value, ...] | None]:
    """Give the values that each key takes; none for an interval."""
    if isinstance(study, SearchStudy):
        return {k: v if isinstance(v, tuple) else None for k, v in study.space.items()}
    keys = dict.fromkeys(key for point in study.points for key in point)
    return {key: tuple(p[key] for p in study.points if key in p) for key in keys}


def _mistakes(study: SearchStudy | ListedStudy, kind: str) -> Mistakes:
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
    dotted = (key for key in (*space, *study.products) if "." in key)
    for key in (*study.set, *dotted):
        section, _, name = key.partition(".")
        if section not in SECTIONS or (section == "cluster" and name not in OF_CLUSTER):
            problem = "is no key that a study may set"
            yield key, problem, "a key of a recipe, or cluster.nodes, ranks, hours, jobs, smoke"
    places = (study.set.keys(), space.keys(), study.products.keys())
    for one, other in itertools.combinations(places, 2):
        for key in one & other:
            yield key, "is set twice", f"keep it under one of set, {kind} and products"


def _quoted(study: SearchStudy | ListedStudy) -> Mistakes:
    """Report mappings and lists that are quoted, as earlier versions had them."""
    listed = ((key, value) for key, values in varied(study).items() for value in values or ())
    for key, value in (*study.set.items(), *listed):
        if isinstance(value, str) and value.startswith(("{", "[")):
            yield key, f"{value!r} is a text", "write {a: 1} or [a] without quotes around it"


def _texts(tree: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a study, the names of keys included, and where it is."""
    if isinstance(tree, str):
        yield path, tree
    parts: Iterable[tuple[object, object]] = tree.items() if isinstance(tree, dict) else ()
    for step, item in enumerate(tree) if isinstance(tree, list) else parts:
        yield path or "names", str(step)
        yield from _texts(item, f"{path}.{step}" if path else str(step))


def _mistakes_of_searched(study: SearchStudy) -> Mistakes:
    for key, values in study.space.items():
        if isinstance(values, Interval):
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


def _mistakes_of_listed(study: ListedStudy) -> Mistakes:
    first, *others = study.points
    for index, point in enumerate(others, start=1):
        if point.keys() != first.keys():
            yield f"points[{index}]", "has other keys than the first point", "name all keys"
        if point in study.points[:index]:
            yield f"points[{index}]", "is given twice", "keep it once"
    named = {f"published.values[{i}].at": q.at for i, q in enumerate(study.published.values)}
    # Several divide a series each, if every point has one of them that is not itself alone.
    several = all(map(study.base, study.points)) and any(
        study.base(point) != point for point in study.points
    )
    if study.baseline and not several:
        named["baseline"] = study.baseline
    for path, at in named.items():
        count = sum(schema.has_values(point, at) for point in study.points)
        if count != 1:
            problem = f"{count} points have {dict(at)}"
            yield path, problem, "name what tells one point from the others"
    yield from _unreadable(study)
    yield from _undrawn(study, {**first, **study.products})


def _unreadable(study: ListedStudy) -> Mistakes:
    """Report an objective and columns without a figure, and tokenizers that are no name."""
    shown = [("objective", study.objective.measured or study.objective.planned)]
    for name, column in study.columns.items():
        shown.append((f"columns.{name}", column.measured or column.planned))
    for path, key in shown:
        if not key:
            problem = "shows neither a measured nor a planned figure"
            yield path, problem, "name a key as measured, as planned, or both"
    for tokenizer in varied(study).get(schema.TOKENIZER) or ():
        if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", str(tokenizer)):
            problem = f"{tokenizer!r} is no name of a file of conf/tokenizer"
            yield schema.TOKENIZER, problem, "name one, as unigram_eu24"


def _undrawn(study: ListedStudy, known: Mapping[str, object]) -> Mistakes:
    """Report what the figure names and no point has, and names that nothing uses."""
    figure = study.figure
    for name, keys in (("x", figure.x), ("series", figure.series)):
        for key in keys:
            if key not in known:
                yield f"figure.{name}", f"no point has {key!r}", f"known: {', '.join(known)}"
    used = {factor for factors in study.products.values() for factor in factors}
    for key in known.keys() - used - {*figure.x, *figure.series, *schema.CHOSEN}:
        if "." not in key:
            problem = f"{key!r} is no key of a recipe, and no product or figure uses it"
            yield f"points.{key}", problem, "write the whole key, as optimizer.lr"
    if "x" in figure.log and all(key in known for key in figure.x):
        values = [study.shown(point).get(figure.x[0]) for point in study.points]
        numbers = [v for v in values if isinstance(v, int | float) and v is not True]
        if len(figure.x) > 1 or len(numbers) < len(values) or min(numbers) <= 0:
            problem = "a logarithmic axis needs one key of positive numbers"
            yield "figure.log", problem, "name one such key as figure.x, or leave x out"


def _with_cited(tree: dict[str, Any], where: str) -> dict[str, Any]:
    """Write the points that a study takes from a table, and what is published of them."""
    rest = {key: value for key, value in tree.items() if key != "table"}
    published = tree.get("published")
    if not isinstance(tree["table"], dict) or not isinstance(published, dict):
        raise RecipeError(f"{where}.table", "no mapping", "see studies/playbook_best.yaml")
    for holder, key in ((rest, "points"), (rest, "grid"), (published, "values")):
        if key in holder:
            raise RecipeError(f"{where}.{key}", "the table gives it", f"leave {key} out")
    table = read_section(CitedRows, tree["table"], f"{where}.table")
    known = sorted(path.name for path in TABLES.glob("*.csv"))
    if table.file not in known:
        problem = f"there is no table {table.file!r}"
        raise RecipeError(f"{where}.table.file", problem, nearest(table.file, known))
    with (TABLES / table.file).open(encoding="utf-8", newline="") as lines:
        points, values = cite(table, list(csv.DictReader(lines)), f"{where}.table")
    return {**rest, "points": points, "published": {**published, "values": values}}


def cite(
    table: CitedRows, rows: Sequence[Cells], where: str
) -> tuple[list[dict[str, Value]], list[dict[str, Any]]]:
    """Return the ``points`` of a study and the ``values`` published of them, with their lines.

    Raises:
        RecipeError: the table has no such column or cell, or no row is left.
    """
    for path, column in _columns(table):
        if rows and column not in rows[0]:
            problem = f"{table.file} has no column {column!r}"
            raise RecipeError(f"{where}.{path}", problem, f"it has {', '.join(rows[0])}")
    like = [row for row in enumerate(rows, start=2) if _is_like(table.where, row[1])]
    kept = [(line, row) for line, row in like if _figure(table, row) is not None]
    kept = kept if table.best is None else _best(table.best, kept)
    if not kept:
        raise RecipeError(f"{where}.where", f"no row of {table.file} is left", "ask for less")
    points: list[dict[str, Value]] = []
    values = []
    for line, row in kept:
        keys = table.keys.items()
        point = {key: _of_column(one, row, f"{where}.keys.{key}") for key, one in keys}
        place = f"{table.file}:{line}"
        values.append({"at": point, "value": _figure(table, row), "place": place})
        points += [] if point in points else [point]
    return points, values


def _columns(table: CitedRows) -> Iterator[tuple[str, str]]:
    yield "value", table.value
    for part, cells in (("where", table.where), ("out_of_memory", table.out_of_memory)):
        yield from ((f"{part}.{column}", column) for column in cells)
    if table.best is not None:
        yield from (("best", column) for column in (table.best.column, *table.best.by))
    for key, column in table.keys.items():
        yield f"keys.{key}", column if isinstance(column, str) else column.column


def _is_like(wanted: Mapping[str, Sequence[str]], row: Cells) -> bool:
    return all(row[column] in cells for column, cells in wanted.items())


def _figure(table: CitedRows, row: Cells) -> float | str | None:
    if table.out_of_memory and _is_like(table.out_of_memory, row):
        return schema.OUT_OF_MEMORY
    value = _value(row[table.value])
    return value if isinstance(value, int | float) and value > 0 else None


def _best(best: schema.Best, rows: list[tuple[int, Cells]]) -> list[tuple[int, Cells]]:
    """Keep one row a group, in the order in which the groups begin.

    Text and numbers that are not finite do not count.
    """
    groups: dict[tuple[str, ...], list[tuple[float, int, Cells]]] = {}
    for line, row in rows:
        value = _value(row[best.column])
        if not isinstance(value, str) and math.isfinite(value):
            group = tuple(row[column] for column in best.by)
            groups.setdefault(group, []).append((value, line, row))
    choose = max if best.direction == "maximize" else min
    chosen = (choose(group, key=lambda one: one[0]) for group in groups.values())
    return [(line, row) for _, line, row in chosen]


def _of_column(column: str | Column, row: Cells, where: str) -> Value:
    if isinstance(column, str):
        return _value(row[column])
    cell = row[column.column]
    if cell not in column.names:
        problem = f"names has no value for {column.column} {cell!r}"
        raise RecipeError(where, problem, "name all cells of the rows that are asked for")
    return column.names[cell]


def _value(cell: str) -> int | float | str:
    """Read a cell as the number that it is; 2.0 is whole."""
    try:
        number = float(cell)
    except ValueError:
        return cell
    return int(number) if number.is_integer() else number
