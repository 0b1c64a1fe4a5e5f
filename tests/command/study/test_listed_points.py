"""A study that lists its points: what a grid writes, what is shown of them, what is refused."""

from typing import Any

import pytest
import yaml

from command.study.schema import ListedStudy
from command.study.study_file import check_study
from components.errors import RecipeError

TREE = """
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


def tree(**changes: Any) -> dict[str, Any]:
    return {**yaml.safe_load(TREE), **changes}


def listed(**changes: Any) -> ListedStudy:
    study = check_study(tree(**changes), "weak.yaml")
    assert isinstance(study, ListedStudy)
    return study


def gridded(grid: object, **changes: Any) -> dict[str, Any]:
    given = tree(grid=grid, **changes)
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


def test_each_point_is_divided_by_the_one_of_its_own_series() -> None:
    grid = {"parallelism.tensor": [4, 8], "parallelism.data": [1, 2], "size": ["small"]}
    given = gridded(grid, published={**tree()["published"], "values": []})
    study = check_study(given, "g.yaml")
    assert isinstance(study, ListedStudy)
    first, second, third, fourth = study.points
    assert list(map(study.find_baseline, study.points)) == [first, first, third, third]
    lacking = [first, second, {**fourth, "parallelism.data": 3}]
    del given["grid"]
    given |= {"points": lacking, "baseline": {"parallelism.tensor": 4}}
    refused(given, "baseline", "2 points have")


def drawn(**changes: Any) -> dict[str, Any]:
    return tree(figure={**tree()["figure"], **changes})


def quoted(**at: Any) -> dict[str, Any]:
    values = [{"at": at, "value": 1.0, "place": "table 1"}]
    return tree(published={**tree()["published"], "values": values})


FIRST, SECOND = tree()["points"]
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
        (tree(points=[FIRST, {"parallelism.data": 2}]), "points[1]", "differs in keys from"),
        (tree(points=[FIRST, SECOND, FIRST]), "points[2]", "is listed twice"),
        (tree(points=NODES), "points.nodes", "no product or fig"),
        (
            tree(points=[{**FIRST, "cluster.site.queue": "x"}]),
            "cluster.site.queue",
            "cannot set",
        ),
        (quoted(size="small"), "published.values[0].at", "2 points have"),
        (quoted(size="small", x=1), "published.values[0].at", "0 points have"),
        (tree(baseline={"size": "small"}), "baseline", "2 points have"),
        (tree(baseline={"parallelism.data": 3}), "baseline", "0 points have"),
        (drawn(x=["nodes"]), "figure.x", "no point has 'nodes'"),
        (drawn(series=["recipes"]), "figure.series", "no point has 'recipes'"),
        (drawn(x=["tiles", "size"]), "figure.log", POSITIVE),
        (drawn(x=["size"], series=["tiles"]), "figure.log", POSITIVE),
        (tree(description="\x1b[2Jgone"), "description", CONTROL),
        (drawn(title="a\x07"), "figure.title", CONTROL),
        (tree(set={"budget.\x1b": 1}), "set", CONTROL),
    ],
)
def test_wrong_list_is_refused_by_its_key(
    given: dict[str, Any], path: str, problem: str
) -> None:
    refused(given, path, problem)


@pytest.mark.parametrize("value", [0, -1.0, "oom"])
def test_a_published_figure_is_positive_or_says_that_memory_ran_out(value: object) -> None:
    values = [{"at": {"parallelism.data": 2}, "value": value, "place": "table 1"}]
    with pytest.raises(RecipeError, match=r"published\.values\.0\.value"):
        check_study(tree(published={**tree()["published"], "values": values}), "weak.yaml")
