"""The page of a listed study: the paper's figure redrawn, and a table of all points."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import ceil, floor, log10
from typing import Any

from command.study.point_results import (
    PointResult,
    median_deviation,
    study_grid,
    summarize_points,
)
from command.study.schema import ListedStudy, as_scalar, point_text
from components.report import numbers
from components.report.document import (
    CodeBlock,
    Figure,
    ReportDocument,
    ReportSection,
)
from components.report.figures import PlotlyFigure, choose_color, empty_figure
from components.report.tables import Card

SYMBOLS = {"published": "circle", "planned": "circle-open", "measured": "diamond"}


def study_document(
    study: ListedStudy, tried: Sequence[PointResult], changed: Sequence[str]
) -> ReportDocument:
    """Build the document with each point's published, planned and measured figures.

    ``changed`` are words that differ from the study's file.
    """
    axes, published = study.chart_axes, study.published
    changed_words = (
        f"Planned and measured with {' '.join(changed)}; published values are for the study "
        "as in its file."
    )
    marks = "Diamonds: measured in runs of this study."
    if published.values or study.needs_plans:
        marks = (
            "Filled: published. Open, dotted line: planned; a cross where the plan does not "
            f"fit. {marks}"
        )
    if published.source:
        marks += f" Published by {published.source}; unit: {published.unit}."
    if published.convention:
        marks += f" Counted: {published.convention}."
    label = f"{axes.y_title} over {axes.x_title}; the table below has the numbers"
    chart = Figure("study", lambda: study_figure(study, tried), label)
    return ReportDocument(
        kind=f"Study · {axes.of}" if axes.of else "Study",
        title=axes.title,
        why=study.description,
        tags=((study.recipe, ""), (study.cluster, "")),
        notices=(changed_words,) if changed else (),
        cards=_cards(tried),
        sections=(
            ReportSection("Published, planned, measured", (chart,), marks),
            ReportSection("Every point", (study_grid(study, tried),), _points(study, tried)),
            ReportSection("Again", (CodeBlock("\n".join(_commands(study))),)),
        ),
        is_wide=True,
    )


def _points(study: ListedStudy, tried: Sequence[PointResult]) -> str:
    objective, baseline = study.objective, point_text(study.baseline)
    quantity = f"Measured: `{objective.measured}`"
    if objective.planned:
        quantity = f"Planned: `{objective.planned}` of the plan"
    divided = f", relative to {baseline}" if baseline else ""
    return f"{summarize_points(tried)}. {quantity}{divided}."


def _commands(study: ListedStudy) -> Iterator[str]:
    if study.objective.planned:
        yield f"python run.py -m study={study.name} action=plan"
    yield f"python run.py -m study={study.name}"
    yield f"python run.py action=report study={study.name}"


def _cards(tried: Sequence[PointResult]) -> tuple[Card, ...]:
    published = sum(len(result.quotes) for result in tried)
    quoted = sum(bool(result.quotes) for result in tried)
    planned = sum(result.planned is not None for result in tried)
    measured = sum(result.measured is not None for result in tried)
    middle = numbers.format_value(median_deviation(tried), ".1%")
    return (
        Card("plans off by", middle, ("median of published points",)),
        Card("published figures", str(published), (f"of {quoted} points",)),
        Card("points planned", str(planned), (f"of {len(tried)}", f"{measured} measured")),
    )


def study_figure(study: ListedStudy, tried: Sequence[PointResult]) -> PlotlyFigure:
    """Draw published figures as filled marks, planned as open marks, measured as diamonds."""
    axes = study.chart_axes
    figure = empty_figure(axes.x_title, axes.y_title, height=440)
    rangemode = "tozero" if study.figure else "normal"  # a sweep's losses differ little
    figure.update_yaxes(exponentformat="none", rangemode=rangemode)
    numeric = all(not isinstance(_place(study, result), str) for result in tried)
    if not numeric:
        figure.update_xaxes(type="category")
    if "x" in axes.log:
        places = sorted({_place(study, result) for result in tried}, key=float)
        ticks = {"tickvals": places, "ticktext": [numbers.format_exact(p) for p in places]}
        figure.update_xaxes(type="log", **ticks)
    if "y" in axes.log:
        figure.update_yaxes(type="log", **_log_ticks(tried))
    groups: dict[str, list[PointResult]] = {}
    for result in tried:
        groups.setdefault(_label(study, axes.series, result), []).append(result)
    for index, (name, group) in enumerate(groups.items()):
        for trace in _series(study, name, choose_color(index), group, line=numeric):
            figure.add_scatter(legendgroup=name, **trace)
    return figure


def _series(
    study: ListedStudy, name: str, shade: str, group: list[PointResult], *, line: bool
) -> Iterator[dict[str, Any]]:
    named = f"{name}, " if name else ""

    def draw_series(marks: list[tuple[Any, float, PointResult]], symbol: str) -> dict[str, Any]:
        outline = {"width": 2, "color": shade}
        marker = {"symbol": symbol, "size": 9, "color": shade, "line": outline}
        return {"x": [x for x, _, _ in marks], "y": [y for _, y, _ in marks], "marker": marker}

    for kind, symbol in SYMBOLS.items():
        marks = [
            (_place(study, result), value, result)
            for result in group
            for value in _figures(result, kind)
        ]
        if line:
            marks.sort(key=lambda mark: float(mark[0]))
        if marks:
            mode = "lines+markers" if line and kind == "planned" else "markers"
            dots = {"color": shade, "width": 1.5, "dash": "dot"}
            yield {
                "mode": mode,
                "name": f"{named}{kind}",
                "line": dots,
                **draw_series(marks, symbol),
            }
        # A separate trace, because a legend shows the mark of a trace's first point.
        crossed = [mark for mark in marks if kind == "planned" and not mark[2].fits]
        if crossed:
            hidden = {
                "showlegend": False,
                "hoverinfo": "skip",
                **draw_series(crossed, "x-thin"),
            }
            yield {"mode": "markers", "name": f"{named}does not fit", **hidden}


def _log_ticks(tried: Sequence[PointResult]) -> dict[str, list[Any]]:
    """Return ticks at 1, 2 and 5 of each power of ten, in the page's number format."""
    values = (value for result in tried for kind in SYMBOLS for value in _figures(result, kind))
    drawn = [value for value in values if value]
    if not drawn:
        return {}
    powers = range(floor(log10(min(drawn))), ceil(log10(max(drawn))) + 1)
    places = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    return {
        "tickvals": places,
        "ticktext": [numbers.format_measured(place) for place in places],
    }


def _figures(result: PointResult, kind: str) -> list[float]:
    if kind == "published":
        return [quote.value for quote in result.quotes if not isinstance(quote.value, str)]
    figure = result.planned if kind == "planned" else result.measured
    return [] if figure is None else [figure]


def _place(study: ListedStudy, result: PointResult) -> Any:
    """Return a point's position on the x axis: a number, or the label of several keys."""
    keys = study.chart_axes.x
    value = as_scalar(study.list_shown_values(result.point).get(keys[0], ""))
    with suppress(TypeError, ValueError):  # a sweep's values are texts
        value = float(value) if isinstance(value, str) else value
    if len(keys) == 1 and isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return _label(study, keys, result)


def _label(study: ListedStudy, keys: Sequence[str], result: PointResult) -> str:
    shown = study.list_shown_values(result.point)
    return "/".join(str(as_scalar(shown.get(key, ""))) for key in keys)
