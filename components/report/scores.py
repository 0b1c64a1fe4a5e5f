"""Scores of named lists of tasks, over the tokens trained."""

import html
from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from components.report import figures
from components.report.measurements import MEAN
from components.report.outcome import ReportEntry, Tree


def score_figure(
    entries: Sequence[ReportEntry], evaluated: Sequence[Sequence[Tree]], *, least: int = 2
) -> go.Figure | None:
    """Draw scores in per cent against tokens: of one run by task, of several the means.

    ``evaluated`` has the result files of each run. What has not ``least`` checkpoints is not
    drawn.
    """
    alone = len(entries) == 1
    figure = figures.empty_figure("tokens", "score, %", height=420)
    for index, (entry, trees) in enumerate(zip(entries, evaluated, strict=True)):
        for place, (name, points) in enumerate(_curves(trees, alone=alone).items()):
            if len(points) >= least:
                figure.add_scatter(
                    x=[tokens for tokens, _ in points], y=[score for _, score in points],
                    mode="lines+markers",
                    name=html.escape(name if alone else f"{entry.label}: {name}"),
                    line={
                        "color": figures.colour(place if alone else index),
                        "width": 2.6 if MEAN in name else 1.3,
                    },
                )  # fmt: skip
    return figure if figure.data else None


def _curves(trees: Sequence[Tree], *, alone: bool) -> dict[str, list[tuple[int, float]]]:
    """Give the points of each curve by its name, in the order of tokens."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for tree in sorted(trees, key=lambda tree: int(tree.get("tokens_trained") or 0)):
        for name, score in _scores(tree, alone=alone):
            curves.setdefault(name, []).append((tree.get("tokens_trained") or 0, score))
    return curves


def _scores(tree: Tree, *, alone: bool) -> Iterator[tuple[str, float]]:
    for name, found in tree.get("scores", {}).items():
        yield f"{name}, {MEAN}", found["mean"]
        if alone:
            yield from ((task, one["score"]) for task, one in found["tasks"].items())
