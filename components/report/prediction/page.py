"""A prediction as one self-contained HTML file: the fitted curves, the runs, the target."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from components.planner.result import Plan
from components.report import numbers
from components.report.figures import PlotlyFigure, colour, empty_figure
from components.report.html import figure_html, render_template, write_page
from components.report.prediction import tables
from components.report.tables import Card
from components.scaling.law import Law
from components.scaling.prediction import Prediction

_POINTS = 60  # of a curve


@dataclass(frozen=True, kw_only=True)
class PredictedRecipe:
    """What the page says in words; ``rows`` are label and text of what is predicted."""

    title: str
    unit: str
    convention: str
    notes: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    again: str


def write_prediction(
    said: PredictedRecipe, found: Prediction, law: Law, plan: Plan, destination: Path
) -> Path:
    """Write the page whole or not at all."""
    parts = {
        "said": said,
        "found": found,
        "cards": _cards(found, plan),
        "chart": figure_html("prediction", prediction_figure(found, law, said.unit)),
        "tables": {
            "target": tables.pairs("predicted", said.rows),
            "plan": tables.pairs("by plan", tables.plan_rows(plan)),
            "runs": tables.runs_grid(found),
            "law": tables.law_grid(found.law),
        },
    }
    return write_page(render_template("prediction/page.html.j2", parts), destination)


def _cards(found: Prediction, plan: Plan) -> tuple[Card, ...]:
    low, high = found.loss.low, found.loss.high
    bill = plan.bill
    return (
        Card("loss", f"{found.loss.value:.3f}", (f"{low:.3f} to {high:.3f} in 90 % of fits",)),
        Card("largest runs, held out", f"{found.held_out_error:.2%}", ("off by at most",)),
        Card("FLOPs", f"{found.beyond.flops:.2g}x", ("the largest fitted run's",)),
        Card(
            "device-hours",
            numbers.count(bill.device_hours if bill else None),
            (f"{bill.days:.3g} days" if bill else "not predicted",),
        ),
    )


def prediction_figure(found: Prediction, law: Law, unit: str) -> PlotlyFigure:
    """Draw loss over FLOPs: a curve a size, its runs, and the target at the far end."""
    figure = empty_figure("FLOPs, 6 N D", f"loss, {unit}", height=460)
    figure.update_layout(margin={"t": 60})
    figure.update_xaxes(type="log", exponentformat="power")
    figure.update_yaxes(exponentformat="none")
    sizes = list(dict.fromkeys(one.parameters for one in found.runs))
    ratios = [one.tokens / one.parameters for one in found.runs]
    shortest, longest = min(ratios) / 2, max(ratios)
    for index, size in enumerate([*sizes, found.parameters]):
        most = max(longest * size * 10, found.tokens if size == found.parameters else 0)
        tokens = np.geomspace(shortest * size, most, _POINTS)
        figure.add_scatter(
            x=6 * size * tokens, y=[law.loss(size, one) for one in tokens],
            mode="lines", name=f"{numbers.count(size)} parameters",
            line={"color": colour(index), "width": 1.5}, legendgroup=str(size),
        )  # fmt: skip
        marks = [one for one in found.runs if one.parameters == size]
        figure.add_scatter(
            x=[6.0 * one.parameters * one.tokens for one in marks],
            y=[one.loss for one in marks], mode="markers", showlegend=False,
            marker={
                "color": colour(index), "size": 9,
                "symbol": ["diamond-open" if one.held_out else "circle" for one in marks],
            },
            legendgroup=str(size),
        )  # fmt: skip
    loss = found.loss
    figure.add_scatter(
        x=[6.0 * found.parameters * found.tokens], y=[loss.value], name="predicted",
        mode="markers", marker={"color": "#c4506b", "size": 12, "symbol": "star"},
        error_y={"array": [loss.high - loss.value], "arrayminus": [loss.value - loss.low]},
    )  # fmt: skip
    return figure
