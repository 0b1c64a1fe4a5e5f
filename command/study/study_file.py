"""Check a study's file, and expand its table, grid or ladder into points.

A table contains measurements that others published, in ``benchmarks/data``.
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
from components.config.suggestions import suggest_similar
from components.config.validation import read_section
from components.errors import RecipeError

SECTIONS = frozenset(fields_of(Recipe))
# The keys of the machine that a study may set: its amount. Others would reach job scripts.
OF_CLUSTER = frozenset({"nodes", "ranks", "hours", "jobs", "smoke"})
KINDS = ("space", "points", "grid", "ladder")
FIELDS = {*KINDS, "table", *fields_of(SearchStudy), *fields_of(LadderStudy)}
MOST_POINTS = 1_000  # a grid multiplies: a received one could be endless
TABLES = ROOT / "benchmarks" / "data"
CsvRow = Mapping[str, str]
Mistakes = Iterator[tuple[str, str, str]]  # path, problem and fix


def check_study(tree: dict[str, Any], where: str) -> SearchStudy | ListedStudy:
    """Check a study's fields, and the references between its parts."""
    if "table" in tree:
        tree = _with_cited(tree, where)
    kinds = [kind for kind in KINDS if kind in tree]
    if len(kinds) != 1:
        unknown = [f"; unknown key: {key}" for key in tree if key not in FIELDS]
        problem = "".join([f"has {' and '.join(kinds) or 'nothing to try'}", *unknown])
        raise RecipeError(where, problem, f"keep one of {', '.join(KINDS)}")
    if kinds == ["grid"]:
        tree = _spread_grid(tree, where)
    if kinds == ["ladder"]:
        tree = spread_ladder(tree, where)
    study: SearchStudy | ListedStudy
    if kinds == ["space"]:
        study = read_section(SearchStudy, tree, where)
        mistakes = _mistakes_of_searched(study)
    else:
        study = read_section(LadderStudy if kinds == ["ladder"] else ListedStudy, tree, where)
        mistakes = _mistakes_of_listed(study)
    for path, problem, remedy in itertools.chain(
        _mistakes(study, kinds[0]), _quoted(study), mistakes
    ):
        raise RecipeError(f"{where}.{path}", problem, remedy)
    return study


def list_varied_keys(study: SearchStudy | ListedStudy) -> dict[str, tuple[Value, ...] | None]:
    """Return the values of each varied key; None for an interval."""
    if isinstance(study, SearchStudy):
        return {k: v if isinstance(v, tuple) else None for k, v in study.space.items()}
    keys = dict.fromkeys(key for point in study.points for key in point)
    return {key: tuple(p[key] for p in study.points if key in p) for key in keys}


def _mistakes(study: SearchStudy | ListedStudy, kind: str) -> Mistakes:
    space = list_varied_keys(study)
    for factor in {factor for factors in study.products.values() for factor in factors}:
        listed = space.get(factor) if isinstance(factor, str) else (factor,)
        if listed is None or not all(type(value) is int for value in listed):
            problem = f"the factor {factor!r} is not an integer key in the {kind}"
            yield "products", problem, f"list its values under {kind}"
    for path, text in _texts(study.model_dump(mode="json")):
        if not text.replace("\n", "").isprintable():
            yield path, f"{text!r} contains control characters", "write plain text"
    for key in study.set.keys() & SECTIONS:
        problem = "is a section or a group, not a key"
        yield f"set.{key}", problem, f"write its keys, or {key}=... next to study="
    dotted = (key for key in (*space, *study.products) if "." in key)
    for key in (*study.set, *dotted):
        section, _, name = key.partition(".")
        if section not in SECTIONS or (section == "cluster" and name not in OF_CLUSTER):
            problem = "a study cannot set this key"
            yield key, problem, "use a recipe key, or cluster.nodes, ranks, hours, jobs, smoke"
    places = (study.set.keys(), space.keys(), study.products.keys())
    for first, second in itertools.combinations(places, 2):
        for key in first & second:
            yield key, "is set twice", f"keep it under one of set, {kind} and products"


def _quoted(study: SearchStudy | ListedStudy) -> Mistakes:
    """Report mappings and lists in quotes, as earlier versions wrote them."""
    listed = (
        (key, value)
        for key, values in list_varied_keys(study).items()
        for value in values or ()
    )
    for key, value in (*study.set.items(), *listed):
        if isinstance(value, str) and value.startswith(("{", "[")):
            yield key, f"{value!r} is a string", "write {a: 1} or [a] without quotes"


def _texts(tree: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a study, including key names, with its path."""
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
                problem = f"{values.low:g} to {values.high:g} is not an interval"
                yield f"space.{key}", problem, "set low below high, and above 0 with log: true"
    used = {factor for factors in study.products.values() for factor in factors}
    for key in study.space.keys() - used:
        if "." not in key:
            problem = "is neither a key of a recipe nor a factor of a product"
            yield f"space.{key}", problem, "write the full key, such as optimizer.lr"
    for key in study.products:
        if "." not in key:
            problem = f"a study cannot set {key!r}"
            yield f"products.{key}", problem, "use a recipe key, such as budget.total_tokens"


def _spread_grid(tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Expand ``grid`` (lists of values by key) into ``points``, last key fastest."""
    grid = tree["grid"]
    if not isinstance(grid, dict) or not grid:
        raise RecipeError(f"{where}.grid", f"{grid!r} is not a mapping", "write KEY: [1, 2, 4]")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            problem = f"{values!r} is not a list of values"
            raise RecipeError(f"{where}.grid.{key}", problem, f"write {key}: [1, 2, 4]")
    count = math.prod(len(values) for values in grid.values())
    if count > MOST_POINTS:
        problem = f"{count:,} points, more than {MOST_POINTS:,}"
        raise RecipeError(f"{where}.grid", problem, "write space and search instead")
    points = [
        dict(zip(grid, combination, strict=True))
        for combination in itertools.product(*grid.values())
    ]
    return {**{key: value for key, value in tree.items() if key != "grid"}, "points": points}


def _mistakes_of_listed(study: ListedStudy) -> Mistakes:
    first, *others = study.points
    for index, point in enumerate(others, start=1):
        if point.keys() != first.keys():
            yield f"points[{index}]", "differs in keys from the first point", "name all keys"
        if point in study.points[:index]:
            yield f"points[{index}]", "is listed twice", "remove one"
    named = {f"published.values[{i}].at": q.at for i, q in enumerate(study.published.values)}
    # Several baselines are valid if each point has one and not every point is its own.
    several = all(map(study.find_baseline, study.points)) and any(
        study.find_baseline(point) != point for point in study.points
    )
    if study.baseline and not several:
        named["baseline"] = study.baseline
    for path, at in named.items():
        count = sum(schema.has_values(point, at) for point in study.points)
        if count != 1:
            problem = f"{count} points have {dict(at)}"
            yield path, problem, "add keys until one point matches"
    yield from _unreadable(study)
    yield from _undrawn(study, {**first, **study.products})


def _unreadable(study: ListedStudy) -> Mistakes:
    """Report an objective or columns without a figure, and invalid tokenizer names."""
    shown = [("objective", study.objective.measured or study.objective.planned)]
    for name, column in study.columns.items():
        shown.append((f"columns.{name}", column.measured or column.planned))
    for path, key in shown:
        if not key:
            problem = "has neither a measured nor a planned key"
            yield path, problem, "set measured, planned, or both"
    for tokenizer in list_varied_keys(study).get(schema.TOKENIZER) or ():
        if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", str(tokenizer)):
            problem = f"unknown tokenizer: {tokenizer!r}"
            yield schema.TOKENIZER, problem, "choose one, such as unigram_eu24"


def _undrawn(study: ListedStudy, known: Mapping[str, object]) -> Mistakes:
    """Report figure keys that no point has, and names that nothing uses."""
    figure = study.chart_axes
    for name, keys in (("x", figure.x), ("series", figure.series)):
        for key in keys:
            if key not in known:
                yield f"figure.{name}", f"no point has {key!r}", f"known: {', '.join(known)}"
    used = {factor for factors in study.products.values() for factor in factors}
    for key in known.keys() - used - {*figure.x, *figure.series, *schema.CHOSEN}:
        if "." not in key:
            problem = f"{key!r} is not a recipe key, and no product or figure uses it"
            yield f"points.{key}", problem, "write the full key, such as optimizer.lr"
    if "x" in figure.log and all(key in known for key in figure.x):
        values = [study.list_shown_values(point).get(figure.x[0]) for point in study.points]
        numbers = [v for v in values if isinstance(v, int | float) and v is not True]
        if len(figure.x) > 1 or len(numbers) < len(values) or min(numbers) <= 0:
            problem = "a logarithmic axis needs one key of positive numbers"
            yield "figure.log", problem, "set figure.x to such a key, or remove figure.x"


def _with_cited(tree: dict[str, Any], where: str) -> dict[str, Any]:
    """Add points and published values from the study's table."""
    rest = {key: value for key, value in tree.items() if key != "table"}
    published = tree.get("published")
    if not isinstance(tree["table"], dict) or not isinstance(published, dict):
        raise RecipeError(f"{where}.table", "not a mapping", "see studies/playbook_best.yaml")
    for holder, key in ((rest, "points"), (rest, "grid"), (published, "values")):
        if key in holder:
            raise RecipeError(f"{where}.{key}", "the table sets it", f"remove {key}")
    table = read_section(CitedRows, tree["table"], f"{where}.table")
    known = sorted(path.name for path in TABLES.glob("*.csv"))
    if table.file not in known:
        problem = f"unknown table: {table.file!r}"
        raise RecipeError(f"{where}.table.file", problem, suggest_similar(table.file, known))
    with (TABLES / table.file).open(encoding="utf-8", newline="") as lines:
        points, values = read_cited_rows(table, list(csv.DictReader(lines)), f"{where}.table")
    return {**rest, "points": points, "published": {**published, "values": values}}


def read_cited_rows(
    table: CitedRows, rows: Sequence[CsvRow], where: str
) -> tuple[list[dict[str, Value]], list[dict[str, Any]]]:
    """Return a study's ``points`` and published ``values`` from a table, with line numbers."""
    for path, column in _columns(table):
        if rows and column not in rows[0]:
            problem = f"{table.file} has no column {column!r}"
            raise RecipeError(f"{where}.{path}", problem, f"columns: {', '.join(rows[0])}")
    like = [row for row in enumerate(rows, start=2) if _is_like(table.where, row[1])]
    remaining = [(line, row) for line, row in like if _figure(table, row) is not None]
    remaining = remaining if table.best is None else _best(table.best, remaining)
    if not remaining:
        raise RecipeError(f"{where}.where", f"no row of {table.file} matches", "relax it")
    points: list[dict[str, Value]] = []
    values = []
    for line, row in remaining:
        keys = table.keys.items()
        point = {key: _of_column(column, row, f"{where}.keys.{key}") for key, column in keys}
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


def _is_like(wanted: Mapping[str, Sequence[str]], row: CsvRow) -> bool:
    return all(row[column] in cells for column, cells in wanted.items())


def _figure(table: CitedRows, row: CsvRow) -> float | str | None:
    if table.out_of_memory and _is_like(table.out_of_memory, row):
        return schema.OUT_OF_MEMORY
    value = _value(row[table.value])
    return value if isinstance(value, int | float) and value > 0 else None


def _best(best: schema.Best, rows: list[tuple[int, CsvRow]]) -> list[tuple[int, CsvRow]]:
    """Keep the best finite row per group, in order of each group's first row."""
    groups: dict[tuple[str, ...], list[tuple[float, int, CsvRow]]] = {}
    for line, row in rows:
        value = _value(row[best.column])
        if not isinstance(value, str) and math.isfinite(value):
            group = tuple(row[column] for column in best.by)
            groups.setdefault(group, []).append((value, line, row))
    choose = max if best.direction == "maximize" else min
    chosen = (choose(group, key=lambda entry: entry[0]) for group in groups.values())
    return [(line, row) for _, line, row in chosen]


def _of_column(column: str | Column, row: CsvRow, where: str) -> Value:
    if isinstance(column, str):
        return _value(row[column])
    cell = row[column.column]
    if cell not in column.names:
        problem = f"names has no value for {column.column} {cell!r}"
        raise RecipeError(where, problem, "name all cells of the selected rows")
    return column.names[cell]


def _value(cell: str) -> int | float | str:
    """Parse a cell as a number if possible. 2.0 becomes an integer."""
    try:
        number = float(cell)
    except ValueError:
        return cell
    return int(number) if number.is_integer() else number
