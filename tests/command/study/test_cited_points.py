"""Points from a table that others published: which rows, what of them, what is refused."""

from typing import Any

import pytest

from command.study.schema import CitedRows
from command.study.study_file import read_cited_rows
from components.config.validation import read_section
from components.errors import RecipeError

ROWS = [
    {"model": "1.5", "nodes": "2.0", "dp": "8", "rate": "10.5", "memory": "", "status": "ok"},
    {"model": "1.5", "nodes": "2.0", "dp": "4", "rate": "12.5", "memory": "", "status": "ok"},
    {"model": "1.5", "nodes": "4.0", "dp": "8", "rate": "", "memory": "OOM", "status": "ok"},
    {"model": "3.0", "nodes": "2.0", "dp": "8", "rate": "", "memory": "", "status": "ok"},
    {"model": "3.0", "nodes": "2.0", "dp": "8", "rate": "7", "memory": "", "status": "ok"},
    {"model": "3.0", "nodes": "2.0", "dp": "8", "rate": "8", "memory": "", "status": "bad"},
    {"model": "3.0", "nodes": "2.0", "dp": "8", "rate": "9", "memory": "", "status": "ok"},
]
TABLE: dict[str, Any] = {
    "file": "rates.csv",
    "where": {"status": ["ok"]},
    "best": None,
    "keys": {
        "recipe": {"column": "model", "names": {"1.5": "small", "3.0": "large"}},
        "nodes": "nodes",
        "parallelism.data": "dp",
    },
    "value": "rate",
    "out_of_memory": {"memory": ["OOM"]},
}


NAMED = {"column": "model", "names": {"1.5": "small"}}


def cited(**changes: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return read_cited_rows(
        read_section(CitedRows, {**TABLE, **changes}, "s.table"), ROWS, "s.table"
    )


def test_rows_become_points_each_once_and_figures_with_their_lines() -> None:
    points, values = cited()
    assert points == [
        {"recipe": "small", "nodes": 2, "parallelism.data": 8},
        {"recipe": "small", "nodes": 2, "parallelism.data": 4},
        {"recipe": "small", "nodes": 4, "parallelism.data": 8},
        {"recipe": "large", "nodes": 2, "parallelism.data": 8},
    ]
    told = [(value["value"], value["place"]) for value in values]
    assert told == [
        (10.5, "rates.csv:2"),
        (12.5, "rates.csv:3"),
        ("OOM", "rates.csv:4"),
        (7, "rates.csv:6"),
        (9, "rates.csv:8"),
    ]
    assert [v["at"] for v in values][3:] == [points[3]] * 2


@pytest.mark.parametrize(
    ("direction", "best"), [("maximize", [12.5, 9]), ("minimize", [10.5, 7])]
)
def test_the_best_row_of_each_group_is_kept(direction: str, best: list[float]) -> None:
    _, values = cited(best={"column": "rate", "by": ["model", "nodes"], "direction": direction})
    assert [value["value"] for value in values] == best


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("first", [True, False])
def test_a_number_that_is_not_finite_is_never_the_best(direction: str, first: bool) -> None:
    best = {"column": "rate", "by": ["model"], "direction": direction}
    table = read_section(CitedRows, {**TABLE, "best": best}, "s.table")
    diverged = [{**ROWS[0], "rate": rate} for rate in ("nan", "inf", "-inf")]
    rows = [*diverged, ROWS[0]] if first else [ROWS[0], *diverged]
    _, values = read_cited_rows(table, rows, "s.table")
    assert [value["value"] for value in values] == [10.5]


@pytest.mark.parametrize(
    ("changes", "path", "problem"),
    [
        ({"value": "speed"}, "value", "rates.csv has no column 'speed'\n.*columns: model, n"),
        ({"where": {"state": ["ok"]}}, "where.state", "no column 'state'"),
        ({"out_of_memory": {"gib": ["OOM"]}}, "out_of_memory.gib", "no column 'gib'"),
        ({"keys": {"nodes": "hosts"}}, "keys.nodes", "no column 'hosts'"),
        ({"where": {"status": ["none"]}}, "where", "no row of rates.csv matches"),
        ({"best": {"column": "x", "by": [], "direction": "maximize"}}, "best", "no column 'x'"),
        ({"keys": {"recipe": NAMED}}, "keys.recipe", "names has no value for model '3.0'"),
    ],
)
def test_a_table_says_what_it_lacks(changes: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem) as caught:
        cited(**changes)
    assert caught.value.path == f"s.table.{path}"


@pytest.mark.parametrize("file", ["../secret.csv", "/etc/passwd", "rates.txt"])
def test_a_study_chooses_no_folder(file: str) -> None:
    with pytest.raises(RecipeError, match="pattern") as caught:
        cited(file=file)
    assert caught.value.path == "s.table.file"
