"""Tables of a prediction: the ladder's runs, the law, the target, and what its run costs."""

from collections.abc import Iterable

from components.planner.result import Plan
from components.report import numbers
from components.report.plan_tables import bill_rows
from components.report.tables import Grid
from components.scaling.isoflop import BestByBudgets
from components.scaling.prediction import FittedLaw, Prediction


def runs_grid(found: Prediction) -> Grid:
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
    return Grid(columns=columns, rows=rows)


def law_grid(law: FittedLaw) -> Grid:
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
    return Grid(columns=columns, rows=rows)


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


def plan_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return what the run costs by plan, if its step could be predicted."""
    if plan.bill is None:
        return [("bill", "not predicted: action=plan says what is missing")]
    return bill_rows(plan.bill, None)


def pairs(title: str, rows: Iterable[tuple[str, str]]) -> Grid:
    """Lay out labels and texts below a title."""
    return Grid(columns=(title, ""), rows=list(rows), text_columns=2)
