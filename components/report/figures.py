"""The charts, as plotly figures on a transparent ground.

Ink and rules take their colours from the page's style sheet, so that one file serves light,
dark and print. Names go through :func:`html.escape`, because plotly reads tags in its text.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from components.report.outcome import ReportEntry
from components.run.records import StepMetrics

_COLOURS = ("#3b7dc4", "#d9652b", "#2f9e78", "#b05cae", "#b8912a", "#5aa9cf", "#c4506b")
# Of several runs each has, beside its colour, a mark (plotly's name, a character) and a dash.
_MARKS = (
    *(("circle", "●"), ("square", "■"), ("diamond", "◆"), ("triangle-up", "▲")),
    *(("triangle-down", "▼"), ("cross", "✚"), ("x", "✖"), ("star", "★")),
)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MOST_IN_LEGEND = 8  # runs
_NEUTRAL = "#8b929c"
_TRAINING = ", training"  # after a run's name
_MOST_POINTS = 2000  # more than a screen has columns only make the file large


def colour(index: int) -> str:
    """Give the run at this place in the report its colour."""
    return _COLOURS[index % len(_COLOURS)]


def mark(index: int) -> str:
    """Give the run at this place in the report its mark, as a character."""
    return _MARKS[index % len(_MARKS)][1]


def tell_apart(figure: go.Figure, entries: Sequence[ReportEntry]) -> None:
    """Give the curves of each of several runs its mark and dash: not all see colours.

    A legend of many would leave the curves no place: the table of runs has the marks.
    """
    places = {html.escape(entry.label): place for place, entry in enumerate(entries)}
    if len(entries) > _MOST_IN_LEGEND:
        figure.update_layout(showlegend=False)
    for trace in figure.data:
        place = places.get(str(trace.name).removesuffix(_TRAINING))
        if place is None or len(entries) == 1:
            continue
        if "lines" in trace.mode:
            trace.line.dash = _DASHES[place % len(_DASHES)]
        if "markers" in trace.mode:
            is_open = str(trace.marker.symbol).endswith("-open")
            trace.marker.symbol = _MARKS[place % len(_MARKS)][0] + "-open" * is_open


def loss_figure(entries: Sequence[ReportEntry]) -> go.Figure:
    """Draw training (thin) and held-out loss (points) against tokens, unigram as dots."""
    figure = empty_figure("tokens", "loss, nats per token", height=420)
    for index, entry in enumerate(entries):
        _add_losses(figure, entry, index, alone=len(entries) == 1)
    unigrams = {e.outcome.unigram for e in entries if e.outcome.unigram is not None}
    for unigram in sorted(unigrams):
        figure.add_hline(y=unigram, line={"color": _NEUTRAL, "dash": "dot", "width": 1.5})
        figure.add_annotation(
            x=1, xref="paper", xanchor="right", y=unigram, yanchor="bottom",
            text=f"smoothed unigram {unigram:.3f}", showarrow=False,
        )  # fmt: skip
    return figure


def _add_losses(figure: go.Figure, entry: ReportEntry, index: int, *, alone: bool) -> None:
    """One run alone has a colour a curve; of several, each has one colour."""
    name, journal = html.escape(entry.label), entry.run.journal
    tokens, losses = _series(journal.steps, "loss")
    figure.add_scatter(
        x=tokens, y=losses, mode="lines", legendgroup="" if alone else name, showlegend=alone,
        name="training" if alone else f"{name}{_TRAINING}",
        line={"color": colour(index), "width": 1.3}, opacity=0.8 if alone else 0.4,
    )  # fmt: skip
    figure.add_scatter(
        x=[m.tokens for m in journal.held_out], y=[m.loss for m in journal.held_out],
        mode="lines+markers", legendgroup="" if alone else name, showlegend=True,
        name="held-out" if alone else name,
        line={"color": colour(index + alone), "width": 2.2}, marker={"size": 7},
    )  # fmt: skip
    for resume in journal.events_of("resume"):
        line = {"color": _NEUTRAL if alone else colour(index), "dash": "dash", "width": 1}
        figure.add_vline(x=resume.tokens, line=line)


def sources_figure(entries: Sequence[ReportEntry]) -> go.Figure | None:
    """Draw the held-out loss of each source, by the first run's losses; None without any."""
    finals = [entry.outcome.final_by_source for entry in entries]
    # Later mappings win: the first run that has a source decides its place.
    ranking = {n: x for final in reversed(finals) for n, x in final.items()}
    names = sorted(ranking, key=lambda name: (ranking[name], name))
    if not names:
        return None
    height = 90 + 22 * len(names)
    figure = empty_figure("held-out loss, nats per token", None, height=height)
    labels = {name: html.escape(name) for name in names}
    figure.update_yaxes(
        categoryorder="array", categoryarray=list(labels.values()), autorange="reversed",
        type="category", showgrid=True, dtick=1,
    )  # fmt: skip

    def add_marks(title: str, losses: Mapping[str, float], marker: dict[str, Any]) -> None:
        shown = [name for name in names if name in losses]
        x, y = [losses[name] for name in shown], [labels[name] for name in shown]
        figure.add_scatter(x=x, y=y, mode="markers", name=title, marker=marker)

    # First losses of a run alone (of several they would only crowd), and the unigram's.
    alone = len(entries) == 1
    unigram = {n: x for e in entries for n, x in e.outcome.unigram_by_source.items()}
    first = entries[0].outcome.first_by_source if alone else {}
    baselines = (("smoothed unigram", unigram, "line-ns"), ("first", first, "circle-open"))
    for title, losses, symbol in baselines:
        if any(name in losses for name in names):
            line = {"width": 2, "color": _NEUTRAL}
            marker = {"symbol": symbol, "size": 10, "color": _NEUTRAL, "line": line}
            add_marks(title, losses, marker)
    for index, entry in enumerate(entries):
        title = "final" if alone else html.escape(entry.label)
        marker = {"size": 9, "color": colour(index + alone)}
        add_marks(title, entry.outcome.final_by_source, marker)
    return figure


def step_figure(entries: Sequence[ReportEntry], field: str, exponents: str = "e") -> go.Figure:
    """Draw one quantity of the steps against tokens; the page's heading names it."""
    figure = empty_figure("tokens", None, height=230)
    figure.update_layout(showlegend=False)
    figure.update_yaxes(rangemode="tozero", exponentformat=exponents)
    for index, entry in enumerate(entries):
        tokens, values = _series(entry.run.journal.steps, field)
        figure.add_scatter(
            x=tokens, y=values, mode="lines", name=html.escape(entry.label),
            line={"color": colour(index), "width": 1.5},
        )  # fmt: skip
    return figure


def _series(steps: Sequence[StepMetrics], field: str) -> tuple[list[int], list[float | None]]:
    values: list[float] = [getattr(step, field) for step in steps]
    kept = thinned(values, _MOST_POINTS)
    # JSON has no NaN; plotly leaves a gap at null.
    shown = [values[i] if math.isfinite(values[i]) else None for i in kept]
    return [steps[i].tokens for i in kept], shown


def thinned(values: Sequence[float], most_points: int) -> list[int]:
    """Choose the indices to draw: the lowest and highest of each of equal stretches.

    Spikes stay visible at any length; so does the first value of a stretch that is no number.
    """
    if len(values) <= most_points:
        return list(range(len(values)))
    stretches, kept = max(1, most_points // 2), set()
    for part in range(stretches):
        start, stop = (len(values) * p // stretches for p in (part, part + 1))
        finite = [i for i in range(start, stop) if math.isfinite(values[i])]
        if finite:
            kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        if len(finite) < stop - start:
            kept.add(next(i for i in range(start, stop) if not math.isfinite(values[i])))
    return sorted(kept)


def empty_figure(x_title: str, y_title: str | None, *, height: int) -> go.Figure:
    """Make the ground of a chart, ``height`` pixels high."""
    axis = {"zeroline": False, "automargin": True, "ticks": ""}
    return go.Figure(
        layout={
            "template": None,
            "height": height,
            "margin": {"l": 48, "r": 16, "t": 12, "b": 44},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 12.5},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "hovermode": "closest",
            "xaxis": {**axis, "exponentformat": "B", "title": {"text": x_title}},
            "yaxis": {**axis, "exponentformat": "e", "title": {"text": y_title}},
        }
    )
