"""A study's file: what it sets at a point, what a list and a cited table give."""

from typing import Any

import pytest
import yaml

from command.study.schema import CitedRows, ListedStudy
from command.study.study_file import check_study, read_cited_rows
from components.config.validation import read_section
from components.errors import RecipeError

TREE = """
name: rates
description: Which rate is best.
recipe: teuken7b
cluster: local
set: {budget.seed: 3}
space:
  optimizer.lr: {low: 1.0e-5, high: 1.0e-2, log: true}
  parallelism.microbatch_sequences: [1, 2]
  microbatches: [4, 8]
products: {budget.global_batch_tokens: [64, parallelism.microbatch_sequences, microbatches]}
objective: {measured: held_out.final, planned: null, direction: minimize}
search: {sampler: tpe, trials: 4, at_once: 1, seed: 1, poll_seconds: 1}
published: {}
"""


PRODUCTS = {**yaml.safe_load(TREE)["products"], "tiles": [8, "microbatches"]}
BATCH = "budget.global_batch_tokens"
NO_INTERVAL = ("space.optimizer.lr", "is not an interval")
NO_TEXT = ("data.shares", "is a string.*\n  write {a: 1} or .a. without quotes")


def no_factor(name: str) -> tuple[str, str]:
    return "products", f"the factor '{name}' is not an integer key"


def tree(**changes: Any) -> dict[str, Any]:
    return {**yaml.safe_load(TREE), **changes}


def test_a_point_sets_its_keys_the_fixed_ones_and_the_products() -> None:
    point = {"optimizer.lr": 1e-3, "parallelism.microbatch_sequences": 2, "microbatches": 8}
    assert check_study(tree(), "rates.yaml").collect_values(point) == {
        "budget.seed": 3,
        "optimizer.lr": 1e-3,
        "parallelism.microbatch_sequences": 2,
        "budget.global_batch_tokens": 1_024,
    }
    check_study(tree(set={"cluster.nodes": 4}), "x.yaml")


SPACE = tree()["space"]
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"serach": {}}, "serach", r"unknown key\n.*search"),
    ({"space": SPACE | {"optimizer.lr": {"low": 1, "high": 1, "log": False}}}, *NO_INTERVAL),
    ({"space": SPACE | {"optimizer.lr": {"low": 0, "high": 1, "log": True}}}, *NO_INTERVAL),
    ({"products": {BATCH: ["microbatches", "microbatch"]}}, *no_factor("microbatch")),
    ({"products": {BATCH: ["microbatches", "optimizer.lr"]}}, *no_factor("optimizer.lr")),
    ({"products": {}}, "space.microbatches", "neither a key of a recipe nor a factor"),
    ({"set": {"optimizer.lr": 0.1}}, "optimizer.lr", "is set twice"),
    ({"set": {BATCH: 64}}, BATCH, "is set twice"),
    ({"products": {"optimizer.lr": [2, "microbatches"]}}, "optimizer.lr", "is set twice"),
    ({"products": PRODUCTS}, "products.tiles", "a study cannot set 'tiles'"),
    ({"set": {"cluster.site.queue": "x"}}, "cluster.site.queue", "a study cannot set this key"),
    ({"set": {"run": "x"}}, "run", "a study cannot set this key"),
    ({"set": {"site.account": "x"}}, "site.account", "a study cannot set this key"),
    ({"products": {}, "set": {"data.shares": "{en: 1.0}"}}, *NO_TEXT),
    ({"products": {}, "space": {"data.shares": ["[a]"]}}, *NO_TEXT),
]


@pytest.mark.parametrize(("changes", "path", "problem"), WRONG)
def test_wrong_study_is_refused(changes: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem) as caught:
        check_study(tree(**changes), "rates.yaml")
    assert caught.value.path == f"rates.yaml.{path}"


def test_a_study_tries_one_kind_of_points() -> None:
    with pytest.raises(RecipeError, match=r"has space and points\n.*keep one of space, points"):
        check_study(tree(points=[]), "rates.yaml")
    with pytest.raises(RecipeError, match="has nothing to try"):
        check_study({"name": "rates"}, "rates.yaml")
    with pytest.raises(
        RecipeError, match=r"nothing to try; unknown key: mixture\n.*keep one of"
    ):
        check_study({"name": "rates", "mixture": {"runs": 13}}, "rates.yaml")


LISTED = """
name: weak
description: What is left of the rate.
recipe: gpt175b
cluster: smng_p2
set: {parallelism.zero: 1}
points:
  - {parallelism.data: 1, parallelism.tensor: 8, size: small}
  - {parallelism.data: 2, parallelism.tensor: 8, size: small}
products:
  budget.global_batch_tokens: [614_400, parallelism.data]
  tiles: [16, parallelism.data, parallelism.tensor]
objective: {measured: step_seconds, planned: time.step_seconds}
baseline: {parallelism.data: 1}
published:
  source: a paper
  unit: of the first
  convention: rates divided
  values: [{at: {parallelism.data: 2}, value: 0.93, place: table 1}]
figure: {of: fig. 1, title: Weak, x: [tiles], x_title: t, y_title: y, series: [size], log: [x]}
queue: {at_once: 2, poll_seconds: 1}
"""


def weak(**changes: Any) -> dict[str, Any]:
    return {**yaml.safe_load(LISTED), **changes}


def listed(**changes: Any) -> ListedStudy:
    study = check_study(weak(**changes), "weak.yaml")
    assert isinstance(study, ListedStudy)
    return study


def gridded(grid: object, **changes: Any) -> dict[str, Any]:
    given = weak(grid=grid, **changes)
    del given["points"]
    return given


def refused(given: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem) as caught:
        check_study(given, "weak.yaml")
    assert caught.value.path == f"weak.yaml.{path}"


def test_a_point_sets_keys_and_shows_what_it_counts() -> None:
    study = listed()
    assert study.collect_values(study.points[1]) == {
        "parallelism.zero": 1,
        "parallelism.data": 2,
        "parallelism.tensor": 8,
        "budget.global_batch_tokens": 1_228_800,
    }
    assert study.list_shown_values(study.points[1]) == {**study.points[1], "tiles": 256}
    assert [quote.value for quote in study.find_quotes(study.points[1])] == [0.93]
    assert study.find_quotes(study.points[0]) == ()
    assert [study.find_baseline(point) for point in study.points] == [study.points[0]] * 2


def test_each_point_is_divided_by_the_baseline_of_its_series() -> None:
    grid = {"parallelism.tensor": [4, 8], "parallelism.data": [1, 2], "size": ["small"]}
    given = gridded(grid, published={**weak()["published"], "values": []})
    study = check_study(given, "g.yaml")
    assert isinstance(study, ListedStudy)
    first, second, third, fourth = study.points
    assert list(map(study.find_baseline, study.points)) == [first, first, third, third]
    lacking = [first, second, {**fourth, "parallelism.data": 3}]
    del given["grid"]
    given |= {"points": lacking, "baseline": {"parallelism.tensor": 4}}
    refused(given, "baseline", "2 points have")


def drawn(**changes: Any) -> dict[str, Any]:
    return weak(figure={**weak()["figure"], **changes})


def quoted(**at: Any) -> dict[str, Any]:
    values = [{"at": at, "value": 1.0, "place": "table 1"}]
    return weak(published={**weak()["published"], "values": values})


FIRST, SECOND = weak()["points"]
QUEUE = "cluster.site.queue"
NODES = [{**FIRST, "nodes": 1}, {**SECOND, "nodes": 2}]
ENDLESS = gridded({f"optimizer.k{i}": list(range(100)) for i in range(9)})
GRID, POSITIVE = "grid.parallelism.data", "needs one key of positive numbers"
CONTROL = "contains control characters"


@pytest.mark.parametrize(
    ("given", "path", "problem"),
    [
        (gridded([]), "grid", r"\[\] is not a mapping"),
        (gridded({"parallelism.data": 2}), GRID, "2 is not a list of values"),
        (gridded({"parallelism.data": []}), GRID, "not a list of values"),
        (ENDLESS, "grid", "1,000,000,000,000,000,000 points, more than 1,000"),
        (weak(points=[FIRST, {"parallelism.data": 2}]), "points[1]", "differs in keys from"),
        (weak(points=[FIRST, SECOND, FIRST]), "points[2]", "is listed twice"),
        (weak(points=NODES), "points.nodes", "no product or fig"),
        (weak(points=[{**FIRST, QUEUE: "x"}]), QUEUE, "a study cannot set"),
        (quoted(size="small"), "published.values[0].at", "2 points have"),
        (quoted(size="small", x=1), "published.values[0].at", "0 points have"),
        (weak(baseline={"size": "small"}), "baseline", "2 points have"),
        (weak(baseline={"parallelism.data": 3}), "baseline", "0 points have"),
        (drawn(x=["nodes"]), "figure.x", "no point has 'nodes'"),
        (drawn(series=["recipes"]), "figure.series", "no point has 'recipes'"),
        (drawn(x=["tiles", "size"]), "figure.log", POSITIVE),
        (drawn(x=["size"], series=["tiles"]), "figure.log", POSITIVE),
        (weak(description="\x1b[2Jgone"), "description", CONTROL),
        (drawn(title="a\x07"), "figure.title", CONTROL),
        (weak(set={"budget.\x1b": 1}), "set", CONTROL),
    ],
)
def test_a_wrong_list_is_refused_with_its_key(given, path, problem):
    refused(given, path, problem)


@pytest.mark.parametrize("value", [0, -1.0, "oom"])
def test_a_published_figure_is_positive_or_out_of_memory(value: object) -> None:
    values = [{"at": {"parallelism.data": 2}, "value": value, "place": "table 1"}]
    with pytest.raises(RecipeError, match=r"published\.values\.0\.value"):
        check_study(weak(published={**weak()["published"], "values": values}), "weak.yaml")


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


def test_rows_become_points_and_figures_with_lines() -> None:
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
def test_a_non_finite_number_is_never_the_best(direction: str, first: bool) -> None:
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
def test_a_table_lists_missing_values(changes: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem) as caught:
        cited(**changes)
    assert caught.value.path == f"s.table.{path}"


@pytest.mark.parametrize("file", ["../secret.csv", "/etc/passwd", "rates.txt"])
def test_a_study_chooses_no_folder(file: str) -> None:
    with pytest.raises(RecipeError, match="pattern") as caught:
        cited(file=file)
    assert caught.value.path == "s.table.file"
