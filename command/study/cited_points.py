"""Points that a study takes from a table of measurements that others published."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from command.study.schema import OUT_OF_MEMORY, Names, Value
from components.config.schema.types import FrozenMapping, Section
from components.errors import RecipeError

Cells = Mapping[str, str]
PLAIN = r"[\w-]+\.csv"  # a name, no path: the folder is not the file's to choose


class Column(Section):
    """A column whose cells stand for values: ``names`` says which."""

    column: str
    names: FrozenMapping[Value]


class Best(Section):
    """Keep the best row by ``column`` of those that are alike in the columns ``by``."""

    column: str
    by: Names
    direction: Literal["maximize", "minimize"]


class CitedRows(Section):
    """Rows of ``file`` where each column of ``where`` has one of the cells listed.

    ``keys`` says from which column a key of the points comes, ``value`` which column is the
    published figure; rows like ``out_of_memory`` did not fit, others without a number are left
    out.
    """

    file: Annotated[str, StringConstraints(pattern=rf"^{PLAIN}$")]
    where: FrozenMapping[Names]
    best: Best | None
    keys: FrozenMapping[str | Column]
    value: str
    out_of_memory: FrozenMapping[Names]


def cite(table: CitedRows, rows: Sequence[Cells], where: str) -> dict[str, Any]:
    """Return the ``points`` of a study and the ``values`` published of them.

    Line numbers count the table's head as 1.

    Raises:
        RecipeError: the table has no such column or cell, or no row is left.
    """
    for path, column in _columns(table):
        if rows and column not in rows[0]:
            problem = f"{table.file} has no column {column!r}"
            raise RecipeError(f"{where}.{path}", problem, f"it has {', '.join(rows[0])}")
    kept = [
        (line, row)
        for line, row in enumerate(rows, start=2)
        if _is_like(table.where, row) and _figure(table, row) is not None
    ]
    if table.best is not None:
        kept = _best(table.best, kept)
    if not kept:
        raise RecipeError(f"{where}.where", f"no row of {table.file} is left", "ask for less")
    points: list[dict[str, Value]] = []
    values = []
    for line, row in kept:
        point = {
            key: _of_column(column, row, f"{where}.keys.{key}")
            for key, column in table.keys.items()
        }
        place = f"{table.file}:{line}"
        values.append({"at": point, "value": _figure(table, row), "place": place})
        if point not in points:
            points.append(point)
    return {"points": points, "values": values}


def _columns(table: CitedRows) -> Iterator[tuple[str, str]]:
    """Yield where the study names a column, and its name."""
    yield "value", table.value
    yield from ((f"where.{column}", column) for column in table.where)
    yield from ((f"out_of_memory.{column}", column) for column in table.out_of_memory)
    if table.best is not None:
        yield from (("best", column) for column in (table.best.column, *table.best.by))
    for key, column in table.keys.items():
        yield f"keys.{key}", column if isinstance(column, str) else column.column


def _is_like(wanted: Mapping[str, Sequence[str]], row: Cells) -> bool:
    return all(row[column] in cells for column, cells in wanted.items())


def _figure(table: CitedRows, row: Cells) -> float | str | None:
    if table.out_of_memory and _is_like(table.out_of_memory, row):
        return OUT_OF_MEMORY
    value = _value(row[table.value])
    return value if isinstance(value, int | float) and value > 0 else None


def _best(best: Best, rows: list[tuple[int, Cells]]) -> list[tuple[int, Cells]]:
    """Keep one row a group, in the order in which the groups begin; text is no rival."""
    sign = 1 if best.direction == "maximize" else -1
    kept: dict[tuple[str, ...], tuple[float, int, Cells]] = {}
    for line, row in rows:
        value = _value(row[best.column])
        if isinstance(value, str):
            continue
        group = tuple(row[column] for column in best.by)
        if group not in kept or sign * value > kept[group][0]:
            kept[group] = (sign * value, line, row)
    return [(line, row) for _, line, row in kept.values()]


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
