"""Prediction page: the fitted curves of small runs, the runs, the law, the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from components.planner.result import Plan
from components.report import numbers
from components.report.document import CodeBlock, Figure, ReportDocument, ReportSection
from components.report.figures import PlotlyFigure, choose_color, empty_figure
from components.report.plan_tables import bill_rows
from components.report.tables import Card, Grid, grid_of
from components.scaling.isoflop import BestByBudgets
from components.scaling.law import Law
from components.scaling.prediction import FittedLaw, LadderRun, Prediction

_POINTS = 60  # of a curve


@dataclass(frozen=True, kw_only=True)
class PredictedRecipe:
    """Texts of the prediction page. ``rows`` are label and text of each predicted value."""

    title: str
    unit: str
    convention: str
    notes: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    again: str


def prediction_document(
    predicted: PredictedRecipe, prediction: Prediction, law: Law, plan: Plan
) -> ReportDocument:
    """Return the page with the law, its runs, the prediction and the planned cost."""
    chart = Figure(
        "prediction",
        lambda: prediction_figure(prediction, law, predicted.unit),
        "Loss over FLOPs: runs, the fitted law, the prediction; the tables contain the numbers",
    )
    caption = (
        "One curve per size, by the law. Circles: fitted runs; open diamonds: held-out runs. "
        "The star is the prediction, with the range from the 5th to the 95th percentile of "
        f"{prediction.law.drawn} fits to resampled runs."
    )
    bill = [("bill", "not predicted: action=plan lists the missing values")]
    costs = bill if plan.cost_estimate is None else bill_rows(plan.cost_estimate, None)
    return ReportDocument(
        kind="Prediction",
        title=predicted.title,
        why=f"{predicted.convention}; {prediction.convention}.",
        notices=predicted.notes,
        cards=_cards(prediction, plan),
        sections=(
            ReportSection("The law", (chart, _law_grid(prediction.law)), caption),
            ReportSection(
                "Predicted", (_pairs("predicted", predicted.rows), _pairs("by plan", costs))
            ),
            ReportSection("Every run", (_runs_grid(prediction),)),
            ReportSection("Reproduce", (CodeBlock(predicted.again),)),
        ),
        is_wide=True,
    )


def _cards(prediction: Prediction, plan: Plan) -> tuple[Card, ...]:
    loss, bill = prediction.loss, plan.cost_estimate
    interval = f"{loss.low:.3f} to {loss.high:.3f} in 90 % of fits"
    hours = numbers.format_count(bill.device_hours if bill else None)
    days = f"{bill.days:.3g} days" if bill else "not predicted"
    return (
        Card("loss", f"{loss.value:.3f}", (interval,)),
        Card("largest runs, held out", f"{prediction.held_out_error:.2%}", ("maximum error",)),
        Card("FLOPs", f"{prediction.beyond.flops:.2g}x", ("of the largest fitted run",)),
        Card("device-hours", hours, (days,)),
    )


def prediction_figure(prediction: Prediction, law: Law, unit: str) -> PlotlyFigure:
    """Draw loss over FLOPs: one curve per size, its runs, and the target."""
    figure = empty_figure("FLOPs, 6 N D", f"loss, {unit}", height=460)
    figure.update_xaxes(type="log", exponentformat="power")
    figure.update_yaxes(exponentformat="none")
    sizes = list(dict.fromkeys(run.parameters for run in prediction.runs))
    ratios = [run.tokens / run.parameters for run in prediction.runs]
    shortest, longest = min(ratios) / 2, max(ratios)
    for index, size in enumerate([*sizes, prediction.parameters]):
        most = max(
            longest * size * 10, prediction.tokens if size == prediction.parameters else 0
        )
        tokens = np.geomspace(shortest * size, most, _POINTS)
        figure.add_scatter(
            x=6 * size * tokens, y=[law.predict_loss(size, count) for count in tokens],
            mode="lines", name=f"{numbers.format_count(size)} parameters",
            line={"color": choose_color(index), "width": 1.5}, legendgroup=str(size),
        )  # fmt: skip
        marks = [run for run in prediction.runs if run.parameters == size]
        figure.add_scatter(
            x=[6.0 * run.parameters * run.tokens for run in marks],
            y=[run.loss for run in marks], mode="markers", showlegend=False,
            marker={
                "color": choose_color(index), "size": 9,
                "symbol": ["diamond-open" if run.held_out else "circle" for run in marks],
            },
            legendgroup=str(size),
        )  # fmt: skip
    loss = prediction.loss
    figure.add_scatter(
        x=[6.0 * prediction.parameters * prediction.tokens], y=[loss.value], name="predicted",
        mode="markers", marker={"color": "#c4506b", "size": 12, "symbol": "star"},
        error_y={"array": [loss.high - loss.value], "arrayminus": [loss.value - loss.low]},
    )  # fmt: skip
    return figure


def _runs_grid(prediction: Prediction) -> Grid:
    """Return the table of runs and the law's losses. The fit excludes held-out runs."""
    columns: dict[str, Callable[[LadderRun], str]] = {
        "run": lambda run: "held out" if run.held_out else "fitted",
        "parameters": lambda run: f"{run.parameters:,}",
        "tokens": lambda run: f"{run.tokens:,}",
        "loss": lambda run: numbers.format_loss(run.loss),
        "law": lambda run: numbers.format_loss(run.predicted),
        "error": lambda run: f"{run.error:+.2%}",
    }
    return grid_of(prediction.runs, columns, kind="study")


def _law_grid(law: FittedLaw) -> Grid:
    """Return the table of the law's constants and their intervals."""
    rows = [
        (label, *(f"{value:.4g}" for value in (constant.value, constant.low, constant.high)))
        for label, constant in (
            *(("E", law.E), ("A", law.A), ("B", law.B)),
            *(("alpha, of parameters", law.alpha), ("beta, of tokens", law.beta)),
            ("beta / (alpha + beta), exponent of the best size over FLOPs", law.exponent),
        )
    ]
    columns = ("E + A/N^alpha + B/D^beta", "fitted", "5th percentile", "95th percentile")
    return Grid(columns=columns, rows=rows, kind="study")


def target_rows(prediction: Prediction) -> list[tuple[str, str]]:
    """Return label and text of each predicted value."""
    best, beyond, loss = prediction.optimum, prediction.beyond, prediction.loss
    return [
        ("loss", f"{loss.value:.3f} ({loss.low:.3f} to {loss.high:.3f})"),
        ("parameters, tokens", f"{prediction.parameters:,}, {prediction.tokens:,}"),
        ("maximum error on held-out runs", f"{prediction.held_out_error:.2%}"),
        (
            "FLOPs relative to the largest fitted run",
            f"{numbers.format_measured(beyond.flops)} times",
        ),
        (
            "compute-optimal at these FLOPs, by the law",
            f"{numbers.format_count(best.parameters)} parameters on "
            f"{numbers.format_count(best.tokens)} tokens: {best.loss:.3f}",
        ),
    ]


def by_budgets_row(best: BestByBudgets) -> tuple[str, str]:
    """Return label and text of the best use of the FLOPs by the second approach."""
    sizes = ", ".join(numbers.format_count(budget.parameters) for budget in best.budgets)
    return (
        "compute-optimal at these FLOPs, by parabolas per budget",
        f"{numbers.format_count(best.parameters)} parameters on "
        f"{numbers.format_count(best.tokens)} tokens: "
        f"best sizes {sizes}, exponent {best.exponent:.3f}",
    )


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> Grid:
    return Grid(columns=(title, ""), rows=rows, text_columns=2, kind="study")
