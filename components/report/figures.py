"""Charts as plotly figures with a transparent background.

Colors of text and lines come from the page's style sheet, so that a file works in light mode,
dark mode and print. `html.figure_html` escapes the text of a figure, so it is not escaped here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from components.report.held_out import AS_MIXTURE, PLAIN_MEAN, loss_rows
from components.report.measurements import MEAN
from components.report.outcome import JsonTree, ReportEntry
from components.run.records import HeldOutEvaluation
from components.run.step_table import StepTable

PlotlyFigure = Any  # plotly has no types
_COLOURS = ("#3b7dc4", "#d9652b", "#2f9e78", "#b05cae", "#b8912a", "#5aa9cf", "#c4506b")
# With several runs, each has a color, a mark (plotly's name, a character) and a dash.
_MARKS = (
    *(("circle", "●"), ("square", "■"), ("diamond", "◆"), ("triangle-up", "▲")),
    *(("triangle-down", "▼"), ("cross", "✚"), ("x", "✖"), ("star", "★")),
)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MOST_IN_LEGEND = 8  # runs
_NEUTRAL = "#8b929c"
_TRAINING = ", training"  # after a run's name
MOST_POINTS = 2000  # more points than screen columns only make the file larger


def choose_color(index: int) -> str:
    """Return the color of a run by its index in the report."""
    return _COLOURS[index % len(_COLOURS)]


def choose_mark(index: int) -> str:
    """Return the mark of a run by its index in the report, as a character."""
    return _MARKS[index % len(_MARKS)][1]


def tell_apart(figure: PlotlyFigure, entries: Sequence[ReportEntry]) -> PlotlyFigure:
    """Set the mark and dash of each run's curves, because not all readers see colors.

    A legend of many runs would fill the chart; the table of runs has the marks.
    """
    places = {entry.label: place for place, entry in enumerate(entries)}
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
    return figure


def loss_figure(entries: Sequence[ReportEntry]) -> PlotlyFigure:
    """Draw training loss (thin), held-out loss (points) and unigram (dotted) over tokens."""
    figure = empty_figure("tokens", "loss, nats per token", height=420)
    for index, entry in enumerate(entries):
        _add_losses(figure, entry, index, alone=len(entries) == 1)
    for unigram in sorted({loss for e in entries if (loss := _unigram(e)) is not None}):
        figure.add_hline(y=unigram, line={"color": _NEUTRAL, "dash": "dot", "width": 1.5})
        figure.add_annotation(
            x=1, xref="paper", xanchor="right", y=unigram, yanchor="bottom",
            text=f"smoothed unigram {unigram:.3f}", showarrow=False,
        )  # fmt: skip
    return figure


def _unigram(entry: ReportEntry) -> float | None:
    held_out = entry.outcome.held_out
    return held_out.unigram if held_out.shares else held_out.unigram_unweighted


def _add_losses(figure: PlotlyFigure, entry: ReportEntry, index: int, *, alone: bool) -> None:
    """Add a run's loss curves: one color per curve for a single run, else one per run."""
    name, history = entry.label, entry.run.history
    tokens, losses = _series(history.steps, "loss")
    figure.add_scatter(
        x=tokens, y=losses, mode="lines", legendgroup="" if alone else name, showlegend=alone,
        name="training" if alone else f"{name}{_TRAINING}",
        line={"color": choose_color(index), "width": 1.3}, opacity=0.8 if alone else 0.4,
    )  # fmt: skip
    for place, (mean, points) in enumerate(_means(entry, alone=alone).items()):
        figure.add_scatter(
            x=[m.tokens for m, _ in points], y=[loss for _, loss in points],
            mode="lines+markers", legendgroup="" if alone else name, showlegend=True,
            name=f"held-out, {mean}" if alone else name,
            line={
                "color": choose_color(index + alone + place), "width": 1.4 if place else 2.2,
                "dash": "dash" if place else "solid",
            },
            marker={"size": 7, "symbol": "circle-open" if place else "circle"},
        )  # fmt: skip
    for resume in history.events_of("resume"):
        line = {"color": _NEUTRAL if alone else choose_color(index), "dash": "dash", "width": 1}
        figure.add_vline(x=resume.tokens, line=line)


def _means(
    entry: ReportEntry, *, alone: bool
) -> dict[str, list[tuple[HeldOutEvaluation, float]]]:
    """Return the points of each mean; the plain mean for a single run, or as the only one."""
    measured = entry.run.history.held_out
    weighted = [(m, m.weighted_loss) for m in measured if m.weighted_loss is not None]
    means = {AS_MIXTURE: weighted} if weighted else {}
    if not weighted or (alone and len(measured[0].by_source) > 1):
        means[PLAIN_MEAN] = [(m, m.loss) for m in measured]
    return means


def sources_figure(entries: Sequence[ReportEntry]) -> PlotlyFigure | None:
    """Draw the last held-out losses, means above sources. Return None if there are none."""
    rows = [loss_rows(entry.outcome) for entry in entries]
    # Later mappings win: the first run with a source determines its position.
    by_name = [
        (name, row.last) for run_rows in reversed(rows) for name, row in run_rows.items()
    ]
    ranking = {name: loss for name, loss in by_name if loss is not None}
    if not ranking:
        return None
    means = [name for name in (AS_MIXTURE, PLAIN_MEAN) if name in ranking]
    sources = sorted(ranking.keys() - {*means}, key=lambda name: (ranking[name], name))
    names = [*means, *sources]
    figure = empty_figure("nats per token", None, height=120 + 22 * len(names))
    figure.update_yaxes(
        categoryorder="array", categoryarray=names,
        autorange="reversed", type="category", showgrid=True, dtick=1,
    )  # fmt: skip
    unigram = {
        name: row.unigram for run_rows in reversed(rows) for name, row in run_rows.items()
    }
    _add_marks(figure, "smoothed unigram", names, unigram, symbol="line-ns")
    alone = len(entries) == 1
    if alone:  # several runs would make the chart crowded
        before = {name: row.before for name, row in rows[0].items()}
        _add_marks(figure, "before training", names, before, symbol="circle-open")
        # The mean that is comparable with the training loss.
        same = AS_MIXTURE if len(names) > 1 else names[0]
        training = {same: entries[0].outcome.training_loss}
        title, symbol = "training, last step", "diamond-open"
        _add_marks(figure, title, names, training, symbol=symbol, color=choose_color(0))
    for index, (entry, run_rows) in enumerate(zip(entries, rows, strict=True)):
        title = "held-out, last" if alone else entry.label
        last = {name: row.last for name, row in run_rows.items()}
        _add_marks(
            figure, title, names, last, symbol="circle", color=choose_color(index + alone)
        )
    return figure


def _add_marks(
    figure: PlotlyFigure, title: str, names: Sequence[str], losses: Mapping[str, float | None],
    *, symbol: str, color: str = _NEUTRAL,
) -> None:  # fmt: skip
    """Draw a mark in the row of each name that has a loss, if there are any."""
    present = {n: loss for n in names if (loss := losses.get(n)) is not None}
    if present:
        line = {"width": 0 if symbol == "circle" else 2, "color": color}
        marker = {"symbol": symbol, "size": 9 if symbol == "circle" else 10, "color": color}
        figure.add_scatter(
            x=list(present.values()), y=list(present), mode="markers", name=title,
            marker=marker | {"line": line},
        )  # fmt: skip


def step_figure(entries: Sequence[ReportEntry], field: str) -> PlotlyFigure:
    """Draw one quantity of the steps over tokens. The page's heading names it."""
    is_rate = field == "tokens_per_second"
    figure = empty_figure("tokens", "tokens/s" if is_rate else None, height=230)
    figure.update_layout(showlegend=False)
    figure.update_yaxes(rangemode="tozero", exponentformat="B" if is_rate else "e")
    for index, entry in enumerate(entries):
        tokens, values = _series(entry.run.history.steps, field)
        figure.add_scatter(
            x=tokens, y=values, mode="lines", name=entry.label,
            line={"color": choose_color(index), "width": 1.5},
        )  # fmt: skip
    return figure


def _series(steps: StepTable, field: str) -> tuple[list[int], list[float | None]]:
    values = steps.copy_column(field)
    indices = thin_points(values, MOST_POINTS)
    # JSON has no NaN; plotly draws a gap for null.
    shown = [values[i] if math.isfinite(values[i]) else None for i in indices]
    return [steps[i].tokens for i in indices], shown


def thin_points(values: Sequence[float], most_points: int) -> list[int]:
    """Return the indices to draw: the minimum and maximum of each of equal intervals.

    Spikes stay visible at any length, and so does the first non-finite value of an interval.
    """
    if len(values) <= most_points:
        return list(range(len(values)))
    stretches, indices = max(1, most_points // 2), set()
    for part in range(stretches):
        start, stop = (len(values) * p // stretches for p in (part, part + 1))
        finite = [i for i in range(start, stop) if math.isfinite(values[i])]
        if finite:
            indices |= {
                min(finite, key=values.__getitem__),
                max(finite, key=values.__getitem__),
            }
        if len(finite) < stop - start:
            indices.add(next(i for i in range(start, stop) if not math.isfinite(values[i])))
    return sorted(indices)


def empty_figure(x_title: str, y_title: str | None, *, height: int) -> PlotlyFigure:
    """Return an empty chart that is ``height`` pixels high."""
    from plotly.graph_objects import Figure  # slow, and optional

    axis = {"zeroline": False, "automargin": True, "ticks": ""}
    bottom = {"yref": "container", "y": 0, "yanchor": "bottom"}
    return Figure(
        layout={
            "template": None,
            "height": height,
            "margin": {"l": 48, "r": 16, "t": 12, "b": 44},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 12.5},
            # The legend is below axis and title, which reserve their own space: on a phone a
            # legend is tall.
            "legend": {"orientation": "h", "xref": "container", "x": 0, **bottom},
            "hovermode": "closest",
            "xaxis": {**axis, "exponentformat": "B", "title": {"text": x_title}},
            "yaxis": {**axis, "exponentformat": "e", "title": {"text": y_title}},
        }
    )


def score_figure(
    entries: Sequence[ReportEntry], evaluated: Sequence[Sequence[JsonTree]], *, least: int = 2
) -> PlotlyFigure | None:
    """Draw scores in percent over tokens: tasks of a single run, or means of several runs.

    ``evaluated`` are the runs' result files. Curves below ``least`` checkpoints are skipped.
    """
    alone = len(entries) == 1
    figure = empty_figure("tokens", "score, %", height=420)
    for index, (entry, trees) in enumerate(zip(entries, evaluated, strict=True)):
        for place, (name, points) in enumerate(_curves(trees, alone=alone).items()):
            if len(points) >= least:
                figure.add_scatter(
                    x=[tokens for tokens, _ in points], y=[score for _, score in points],
                    mode="lines+markers",
                    name=name if alone else f"{entry.label}: {name}",
                    line={
                        "color": choose_color(place if alone else index),
                        "width": 2.6 if MEAN in name else 1.3,
                    },
                )  # fmt: skip
    return figure if figure.data else None


def _curves(trees: Sequence[JsonTree], *, alone: bool) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each curve by name, in the order of tokens."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for tree in sorted(trees, key=lambda tree: int(tree.get("tokens_trained") or 0)):
        for name, score in _scores(tree, alone=alone):
            curves.setdefault(name, []).append((tree.get("tokens_trained") or 0, score))
    return curves


def _scores(tree: JsonTree, *, alone: bool) -> Iterator[tuple[str, float]]:
    for name, scores in tree.get("scores", {}).items():
        yield f"{name}, {MEAN}", scores["mean"]
        if alone:
            yield from ((task, figures["score"]) for task, figures in scores["tasks"].items())
