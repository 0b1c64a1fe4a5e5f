"""The page of a listed study: the figure's marks, the table, and text that stays text."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.study.page import study_document, study_figure
from command.study.point_results import (
    PointResult,
    divide_by_baselines,
    median_deviation,
    study_grid,
    summarize_points,
)
from command.study.schema import ListedStudy
from command.study.study_file import check_study
from components.report.document import write_document
from tests.components.report.outline import check_outline

TREE: dict[str, Any] = yaml.safe_load("""
name: weak
description: What is left & why?
recipe: gpt175b
cluster: smng_p2
set: {}
grid: {recipe: [<b>a</b>, b], parallelism.data: [1, 4]}
products: {tiles: [8, parallelism.data]}
objective: {measured: tokens_per_second, planned: time.tokens_per_second}
baseline: {}
published:
  source: a paper <script>alert(1)</script>
  unit: tokens a second
  convention: all devices
  values:
    - {at: {recipe: b, parallelism.data: 1}, value: 100, place: table 1}
    - {at: {recipe: b, parallelism.data: 4}, value: OOM, place: table 2}
    - {at: {recipe: <b>a</b>, parallelism.data: 4}, value: 40, place: t. 3}
figure: {of: figure 1, title: Rates, x_title: tiles, y_title: rate,
  x: [tiles], series: [recipe], log: [x]}
queue: {at_once: 1, poll_seconds: 1}
""")


def a_study(**changes: Any) -> ListedStudy:
    study = check_study({**TREE, **changes}, "weak.yaml")
    assert isinstance(study, ListedStudy)
    return study


def tries(study: ListedStudy) -> list[PointResult]:
    """Planned 10, 20, 110 and nothing; the first is measured, the second does not fit."""
    plans = (10.0, 20.0, 110.0, None)
    return [
        PointResult(
            point=point,
            planned=plan,
            fits=place in {0, 2},
            measured=12.5 if place == 0 else None,
            why=["", "does not fit", "", "refused"][place],
            quotes=study.find_quotes(point),
        )
        for place, (point, plan) in enumerate(zip(study.points, plans, strict=True))
    ]


def test_marks_are_at_the_coordinates_of_their_points() -> None:
    study = a_study()
    drawn = {trace.name: trace for trace in study_figure(study, tries(study)).data}
    first = "<b>a</b>"
    assert list(drawn) == [
        f"{first}, published",
        f"{first}, planned",
        f"{first}, does not fit",
        f"{first}, measured",
        "b, published",
        "b, planned",
    ]
    assert (list(drawn[f"{first}, planned"].x), list(drawn[f"{first}, planned"].y)) == (
        [8, 32],
        [10.0, 20.0],
    )
    crossed = drawn[f"{first}, does not fit"]
    assert (crossed.x, crossed.y, crossed.marker.symbol) == ((32,), (20.0,), "x-thin")
    assert (drawn["b, published"].x, drawn["b, published"].y) == ((8,), (100.0,))
    assert drawn[f"{first}, measured"].y == (12.5,)
    # The legend shows a planned mark even where the first point does not fit.
    tried = [replace(one, fits=False) for one in tries(study)]
    drawn = {trace.name: trace for trace in study_figure(study, tried).data}
    assert drawn["b, planned"].marker.symbol == "circle-open"
    assert drawn["b, does not fit"].showlegend is False


def test_axes_are_logarithmic_or_categorical() -> None:
    study = a_study(figure={**TREE["figure"], "log": ["y"]})
    axis = study_figure(study, tries(study)).layout.yaxis
    assert axis.tickvals[:4] == (10.0, 20.0, 50.0, 100.0)
    assert axis.ticktext[-3:] == ("1,000", "2,000", "5,000")
    axes = {**TREE["figure"], "x": ["recipe", "tiles"], "series": [], "log": []}
    study = a_study(figure=axes)
    figure = study_figure(study, tries(study))
    assert figure.layout.xaxis.type == "category"
    (planned,) = (trace for trace in figure.data if trace.name == "planned")
    assert list(planned.x) == ["<b>a</b>/8", "<b>a</b>/32", "b/8"]
    assert planned.mode == "markers"


def test_deviations_are_relative_to_the_published_figure() -> None:
    study = a_study()
    tried = tries(study)
    deviations = [one.plan_deviation(quote) for one in tried for quote in one.quotes]
    assert deviations == [pytest.approx(-0.5), pytest.approx(0.1), None]
    assert median_deviation(tried) == pytest.approx(0.3)
    assert median_deviation([replace(one, planned=None) for one in tried]) is None
    assert summarize_points(tried) == (
        "4 points, 3 published figures; plans off by 30.0% (median of 2); "
        "1 of 2 that ran do not fit in the plan, or are refused; "
        "1 of 1 that ran out of memory do not fit in the plan, or are refused"
    )
    study = a_study(baseline={"recipe": "<b>a</b>", "parallelism.data": 1})
    divided = divide_by_baselines(study, tries(study))
    assert [one.planned for one in divided] == [1.0, 2.0, 11.0, None]
    assert [one.measured for one in divided] == [1.0, None, None, None]
    without = [replace(one, planned=None) for one in tries(study)]
    assert {one.planned for one in divide_by_baselines(study, without)} == {None}


def test_the_table_has_only_columns_that_differ() -> None:
    study = a_study()
    grid = study_grid(study, tries(study))
    # Data is left out: tiles, which the figure counts, tells the same.
    assert grid.columns == (
        *("recipe", "tiles", "published", "planned", "off by"),
        *("measured", "note", "place"),
    )
    assert grid.rows == [
        ("<b>a</b>", "8", "—", "10", "—", "12.5", "", ""),
        ("<b>a</b>", "32", "40", "20", "-50.0%", "—", "does not fit", "t. 3"),
        ("b", "8", "100", "110", "+10.0%", "—", "", "table 1"),
        ("b", "32", "OOM", "—", "—", "—", "refused", "table 2"),
    ]


def test_the_page_loads_nothing_and_escapes_received_text(tmp_path: Path) -> None:
    study = a_study()
    document = study_document(study, tries(study), ["cluster=local"])
    file = write_document(document, tmp_path / "page.html")
    page = file.read_text("utf-8")
    body = page[page.index("<body>") :]
    assert "<title>Rates: study · figure 1</title>" in page
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=[\"'](?!#)", body)
    check_outline(page)
    assert "<b>a</b>" not in body.replace(json.dumps("<b>a</b>"), "")
    assert "<script>alert" not in body
    for text in ("What is left &amp; why?", "cluster=local", "all devices", "30.0%", "table 2"):
        assert text in body, text
