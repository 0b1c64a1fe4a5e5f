"""What small runs predict of a large one: the fitted curves, the runs, the law, the target."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from components.planner.result import Plan
from components.report import numbers
from components.report.document import CodeBlock, Figure, ReportDocument, ReportSection
from components.report.figures import PlotlyFigure, colour, empty_figure
from components.report.plan_tables import bill_rows
from components.report.tables import Card, Grid
from components.scaling.isoflop import BestByBudgets
from components.scaling.law import Law
from components.scaling.prediction import FittedLaw, Prediction

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


def prediction_document(
    said: PredictedRecipe, found: Prediction, law: Law, plan: Plan
) -> ReportDocument:
    """Set the law beside its runs, and what it predicts beside the bill by plan."""
    chart = Figure(
        "prediction",
        lambda: prediction_figure(found, law, said.unit),
        "Loss over FLOPs: runs, the fitted law, the prediction; the tables have the numbers",
    )
    caption = (
        "A curve a size, by the law; circles: fitted runs, open diamonds: held out. The star "
        "is the prediction, with what lies between 5 % and 95 % of "
        f"{found.law.drawn} fits to runs drawn anew."
    )
    bill = [("bill", "not predicted: action=plan says what is missing")]
    costs = bill if plan.bill is None else bill_rows(plan.bill, None)
    return ReportDocument(
        kind="Prediction",
        title=said.title,
        why=f"{said.convention}; {found.convention}.",
        notices=said.notes,
        cards=_cards(found, plan),
        sections=(
            ReportSection("The law", (chart, _law_grid(found.law)), caption),
            ReportSection(
                "Predicted", (_pairs("predicted", said.rows), _pairs("by plan", costs))
            ),
            ReportSection("Every run", (_runs_grid(found),)),
            ReportSection("Again", (CodeBlock(said.again),)),
        ),
        is_wide=True,
    )


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


def _runs_grid(found: Prediction) -> Grid:
    """Lay out each run beside what the law says of it; held-out runs are no part of the fit."""
    rows = [
        (
            "held out" if one.held_out else "fitted",
            f"{one.parameters:,}",
            f"{one.tokens:,}",
            numbers.loss(one.loss),
            numbers.loss(one.predicted),
            f"{one.error:+.2%}",
        )
        for one in found.runs
    ]
    columns = ("run", "parameters", "tokens", "loss", "by the law", "off by")
    return Grid(columns=columns, rows=rows, kind="study")


def _law_grid(law: FittedLaw) -> Grid:
    """Lay out the constants of the law and their intervals."""
    rows = [
        (label, *(f"{value:.4g}" for value in (one.value, one.low, one.high)))
        for label, one in (
            *(("E", law.E), ("A", law.A), ("B", law.B)),
            *(("alpha, of parameters", law.alpha), ("beta, of tokens", law.beta)),
            ("beta / (alpha + beta), of the best size over FLOPs", law.exponent),
        )
    ]
    columns = ("E + A/N^alpha + B/D^beta", "fitted", "5 % below", "95 % below")
    return Grid(columns=columns, rows=rows, kind="study")


def target_rows(found: Prediction) -> list[tuple[str, str]]:
    """Return label and text of what is predicted."""
    best, beyond, loss = found.optimum, found.beyond, found.loss
    return [
        ("loss", f"{loss.value:.3f} ({loss.low:.3f} to {loss.high:.3f})"),
        ("parameters, tokens", f"{found.parameters:,}, {found.tokens:,}"),
        ("held-out runs are off by at most", f"{found.held_out_error:.2%}"),
        ("FLOPs beyond the largest fitted run", f"{numbers.measured(beyond.flops)} times"),
        (
            "best use of its FLOPs, by the law",
            f"{numbers.count(best.parameters)} parameters on {numbers.count(best.tokens)} "
            f"tokens: {best.loss:.3f}",
        ),
    ]


def by_budgets_row(best: BestByBudgets) -> tuple[str, str]:
    """Return label and text of the best use of the FLOPs by the second approach."""
    sizes = ", ".join(numbers.count(one.parameters) for one in best.budgets)
    return (
        "the same, by parabolas of each budget",
        f"{numbers.count(best.parameters)} parameters on {numbers.count(best.tokens)} tokens: "
        f"best sizes {sizes}, exponent {best.exponent:.3f}",
    )


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> Grid:
    return Grid(columns=(title, ""), rows=rows, text_columns=2, kind="study")
