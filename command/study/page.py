"""The page of a listed study: the paper's figure drawn again, and all points."""

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from command.study.point_results import PointResult, median_deviation, study_grid, summary
from command.study.schema import ListedStudy, as_scalar, point_text
from components.report import numbers
from components.report.document import (
    CodeBlock,
    Figure,
    ReportDocument,
    ReportSection,
    write_document,
)
from components.report.figures import PlotlyFigure, colour, empty_figure
from components.report.html import check_destination
from components.report.tables import Card

SYMBOLS = {"published": "circle", "planned": "circle-open", "measured": "diamond"}


def write_study(
    study: ListedStudy, tried: Sequence[PointResult], changed: Sequence[str], destination: Path
) -> Path:
    """Write the page whole or not at all; ``changed`` are words that the study lacks.

    Raises:
        RecipeError: the destination is a folder.
    """
    check_destination(destination)
    return write_document(study_document(study, tried, changed), destination)


def study_document(
    study: ListedStudy, tried: Sequence[PointResult], changed: Sequence[str]
) -> ReportDocument:
    """Describe what is published, planned and measured of each point."""
    axes, published = study.figure, study.published
    changed_words = (
        f"Planned and measured with {' '.join(changed)}; what is published is of the study as "
        "its file has it."
    )
    marks = (
        "Filled: published. Open, dotted line: planned; a cross where the plan does not fit. "
        f"Diamonds: measured in runs of this study. Published by {published.source}; unit: "
        f"{published.unit}. Counted: {published.convention}."
    )
    label = f"{axes.y_title} over {axes.x_title}; the table below has the numbers"
    chart = Figure("study", lambda: study_figure(study, tried), label)
    return ReportDocument(
        kind=f"Study · {axes.of}",
        title=axes.title,
        why=study.why,
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
    divided = f", divided by that of {baseline}" if baseline else ""
    return f"{summary(tried)}. {quantity}{divided}."


def _commands(study: ListedStudy) -> Iterator[str]:
    if study.objective.planned:
        yield f"python run.py -m study={study.name} action=plan"
    yield f"python run.py -m study={study.name}"
    yield f"python run.py action=report study={study.name}"


def _cards(tried: Sequence[PointResult]) -> tuple[Card, ...]:
    published = sum(len(one.quotes) for one in tried)
    quoted = sum(bool(one.quotes) for one in tried)
    planned = sum(one.planned is not None for one in tried)
    measured = sum(one.measured is not None for one in tried)
    middle = numbers.written(median_deviation(tried), ".1%")
    return (
        Card("plans off by", middle, ("at the median of what is published",)),
        Card("published figures", str(published), (f"of {quoted} points",)),
        Card("points planned", str(planned), (f"of {len(tried)}", f"{measured} measured")),
    )


def study_figure(study: ListedStudy, tried: Sequence[PointResult]) -> PlotlyFigure:
    """Draw published as filled marks, planned as open ones on a line, measured as diamonds."""
    axes = study.figure
    figure = empty_figure(axes.x_title, axes.y_title, height=440)
    figure.update_yaxes(exponentformat="none", rangemode="tozero")
    numeric = all(not isinstance(_place(study, one), str) for one in tried)
    if not numeric:
        figure.update_xaxes(type="category")
    if "x" in axes.log:
        places = sorted({_place(study, one) for one in tried}, key=float)
        ticks = {"tickvals": places, "ticktext": [numbers.exact(p) for p in places]}
        figure.update_xaxes(type="log", **ticks)
    if "y" in axes.log:
        figure.update_yaxes(type="log", **_log_ticks(tried))
    groups: dict[str, list[PointResult]] = {}
    for one in tried:
        groups.setdefault(_label(study, axes.series, one), []).append(one)
    for index, (name, group) in enumerate(groups.items()):
        for trace in _series(study, name, colour(index), group, line=numeric):
            figure.add_scatter(legendgroup=name, **trace)
    return figure


def _series(
    study: ListedStudy, name: str, shade: str, group: list[PointResult], *, line: bool
) -> Iterator[dict[str, Any]]:
    named = f"{name}, " if name else ""

    def drawn(marks: list[tuple[Any, float, PointResult]], symbol: str) -> dict[str, Any]:
        outline = {"width": 2, "color": shade}
        marker = {"symbol": symbol, "size": 9, "color": shade, "line": outline}
        return {"x": [x for x, _, _ in marks], "y": [y for _, y, _ in marks], "marker": marker}

    for kind, symbol in SYMBOLS.items():
        marks = [
            (_place(study, one), value, one) for one in group for value in _figures(one, kind)
        ]
        if line:
            marks.sort(key=lambda mark: float(mark[0]))
        if marks:
            mode = "lines+markers" if line and kind == "planned" else "markers"
            dots = {"color": shade, "width": 1.5, "dash": "dot"}
            yield {"mode": mode, "name": f"{named}{kind}", "line": dots, **drawn(marks, symbol)}
        # In a trace of their own: a legend shows the mark of a trace's first point.
        crossed = [mark for mark in marks if kind == "planned" and not mark[2].fits]
        if crossed:
            hidden = {"showlegend": False, "hoverinfo": "skip", **drawn(crossed, "x-thin")}
            yield {"mode": "markers", "name": f"{named}does not fit", **hidden}


def _log_ticks(tried: Sequence[PointResult]) -> dict[str, list[Any]]:
    """Name 1, 2 and 5 of each power of ten, as numbers are written elsewhere on the page."""
    values = (value for one in tried for kind in SYMBOLS for value in _figures(one, kind))
    drawn = [value for value in values if value]
    if not drawn:
        return {}
    powers = range(floor(log10(min(drawn))), ceil(log10(max(drawn))) + 1)
    places = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    return {"tickvals": places, "ticktext": [numbers.measured(place) for place in places]}


def _figures(one: PointResult, kind: str) -> list[float]:
    if kind == "published":
        return [quote.value for quote in one.quotes if not isinstance(quote.value, str)]
    figure = one.planned if kind == "planned" else one.measured
    return [] if figure is None else [figure]


def _place(study: ListedStudy, one: PointResult) -> Any:
    """Find a point's place on the axis: a number, or the label of several keys."""
    keys = study.figure.x
    value = as_scalar(study.shown(one.point)[keys[0]])
    if len(keys) == 1 and isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return _label(study, keys, one)


def _label(study: ListedStudy, keys: Sequence[str], one: PointResult) -> str:
    shown = study.shown(one.point)
    return "/".join(str(as_scalar(shown[key])) for key in keys)
