"""A sweep: what came out of each run over the keys that the user gave several values.

A swept key is one that the words of the runs' commands differ in, not one that merely follows:
with ``parallelism.tensor=2,4`` other degrees change too, and nobody asked for these.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from components.report import numbers
from components.report.document import Figure
from components.report.figures import PlotlyFigure, colour, empty_figure
from components.report.outcome import ReportEntry, flat

# Words that say where and how, not what.
_NOT_SWEPT = frozenset({"run", "resume", "action", "file", "output", "again", "force"})
# Sections that say what is watched, and who is told.
_OBSERVING = ("profiler.", "tracking.", "logger.", "trainer.")


# What came out of a run: its title, and its field.
RESULTS = {
    "swept_loss": ("Held-out loss, weighted as the mixture", "held_out.final"),
    "swept_plain": ("Held-out loss, plain mean over sources", "held_out.final_unweighted"),
    "swept_training": ("Training loss, last step", "training_loss"),
    "swept_rate": ("Tokens per second", "tokens_per_second"),
}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The value of the swept key in each run, and what the other swept keys are there."""

    key: str
    values: tuple[Any, ...]
    series: tuple[str, ...]
    is_numeric: bool


def sweep_of(entries: Sequence[ReportEntry]) -> Sweep | None:
    """Find what the runs sweep over; ``None`` where fewer than three runs differ by words.

    The axis is the key with the most values, numbers before names; others tell series apart.
    """
    swept = _swept_values(entries)
    if len(entries) < 3 or not swept:
        return None
    key = max(swept, key=lambda one: (_numeric(swept[one]), len(set(map(str, swept[one])))))
    others = [[f"{k}={numbers.exact(v)}" for v in vs] for k, vs in swept.items() if k != key]
    series = tuple(map(", ".join, zip(*others, strict=True))) or ("",) * len(entries)
    values = swept[key]
    return Sweep(key=key, values=values, series=series, is_numeric=_numeric(values))


def _swept_values(entries: Sequence[ReportEntry]) -> dict[str, tuple[Any, ...]]:
    commands = [entry.run.environment.get("command", []) for entry in entries]
    pairs = [[str(word).partition("=") for word in command] for command in commands]
    words = [{key: value for key, equals, value in one if equals} for one in pairs]
    differing = [
        key
        for key in dict.fromkeys(key for one in words for key in one)
        if key not in _NOT_SWEPT
        and not key.startswith(_OBSERVING)
        and len({one.get(key) for one in words}) > 1
    ]
    # As the recipe has it: one point may name what is another's default.
    found = [one | flat(entry.run.recipe) for entry, one in zip(entries, words, strict=True)]
    return {key: tuple(one.get(key, "") for one in found) for key in differing}


def named_by_values(
    entries: Sequence[ReportEntry], sweep: Sweep | None
) -> Sequence[ReportEntry]:
    """Label each run of a sweep by its values, where these tell all runs apart."""
    if sweep is None:
        return entries
    named = [f"{sweep.key}={numbers.exact(value)}" for value in sweep.values]
    pairs = zip(named, sweep.series, strict=True)
    labels = [", ".join(filter(None, pair)) for pair in pairs]
    if len(set(labels)) < len(labels):
        return entries
    return [replace(entry, label=label) for entry, label in zip(entries, labels, strict=True)]


def sweep_charts(entries: Sequence[ReportEntry], sweep: Sweep) -> Iterator[Figure]:
    """Chart the first loss that any run has, and the throughput, over the swept key."""
    drawn = {name: sweep_figure(entries, sweep, result) for name, result in RESULTS.items()}
    shown = [name for name, figure in drawn.items() if figure is not None]
    losses = [name for name in shown if name != "swept_rate"]
    for name in (*losses[:1], *(shown[len(losses) :])):
        title = RESULTS[name][0]
        label = f"{title} over {sweep.key}; the table of runs has the numbers"
        yield Figure(name, partial(drawn.get, name), label, title)


def sweep_figure(
    entries: Sequence[ReportEntry], sweep: Sweep, result: tuple[str, str]
) -> PlotlyFigure | None:
    """Draw one of `RESULTS` over the swept key, a colour a series; None if no run has it."""
    _, field = result
    is_rate = field == "tokens_per_second"
    results = [attrgetter(field)(entry.outcome) for entry in entries]
    if all(value is None for value in results):
        return None
    figure = empty_figure(sweep.key, "tokens/s" if is_rate else "nats per token", height=320)
    figure.update_yaxes(exponentformat="B", rangemode="tozero" if is_rate else "normal")
    _set_axis(figure, sweep)
    for index, name in enumerate(dict.fromkeys(sweep.series)):
        points = [
            (x if sweep.is_numeric else str(x), y, entry.label)
            for x, y, series, entry in zip(
                sweep.values, results, sweep.series, entries, strict=True
            )
            if series == name and y is not None
        ]
        if sweep.is_numeric:
            points.sort()
        figure.add_scatter(
            x=[x for x, _, _ in points], y=[y for _, y, _ in points],
            text=[label for _, _, label in points],
            mode="lines+markers" if sweep.is_numeric else "markers",
            name=name, showlegend=bool(name),
            line={"color": colour(index), "width": 2}, marker={"size": 9},
        )  # fmt: skip
    return figure


def _set_axis(figure: PlotlyFigure, sweep: Sweep) -> None:
    if not sweep.is_numeric:
        figure.update_xaxes(type="category")
        return
    values = sorted(set(sweep.values))
    figure.update_xaxes(tickvals=values, ticktext=[numbers.exact(v) for v in values])
    # Where values span more than this, equal ratios get equal distances.
    if values[0] > 0 and values[-1] / values[0] >= 5.0:
        figure.update_xaxes(type="log")


def _numeric(values: Sequence[Any]) -> bool:
    return all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )
