"""Predict the loss and learning rate of a large run from small ones, next to its bill."""

import shlex
from collections.abc import Iterator

from command.arguments import Arguments
from command.composition.compose import compose_recipe
from command.outcome import print_result
from command.study.ladder import LadderResult, read_ladder
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from components.report.html import check_destination, check_plotly
from components.report.prediction import tables
from components.report.prediction.page import PredictedRecipe, write_prediction
from components.report.tables import terminal_table
from components.terminal import console, say, tell

WIDTH = 130


def run(arguments: Arguments) -> None:
    """Print what the ladder ``study=`` predicts; write the page to ``file=FILE``."""
    if arguments.file is not None:
        check_plotly("file")
        check_destination(arguments.file)
    recipe = compose_recipe(arguments)
    found = read_ladder(arguments, recipe)
    plan = plan_recipe(recipe)
    tree = {**found.as_json(), "plan": plan.as_json()["bill"]}
    print_result(arguments.output, tree, lambda: _print(found, plan))
    if arguments.file is not None:
        said = _said(found, arguments)
        page = write_prediction(said, found.prediction, found.law, plan, arguments.file)
        (say if arguments.output == "json" else tell)(str(page))


def _said(found: LadderResult, arguments: Arguments) -> PredictedRecipe:
    """Collect the text of the page; its command is the user's, without local paths."""
    paths = ("file=", "output=", "run=")
    words = (word for word in arguments.words if not word.startswith(paths))
    recipe, study = found.recipe, found.study
    return PredictedRecipe(
        title=f"{recipe.name} on {recipe.cluster.name}, predicted by {study.name}",
        unit=study.published.unit,
        convention=study.published.convention,
        notes=found.notes,
        rows=tuple(predicted_rows(found)),
        again=shlex.join(["python", "run.py", *words]),
    )


def predicted_rows(found: LadderResult) -> Iterator[tuple[str, str]]:
    """Give label and text of what is predicted, the rate by the ladder's rule among it."""
    yield from tables.target_rows(found.prediction)
    if found.by_budgets is not None:
        yield tables.by_budgets_row(found.by_budgets)
    rule, own = found.study.ladder.lr, found.as_json()["lr_of_recipe"]
    said = f"{found.lr:.3g}, {rule.base:g} (N / {rule.at_parameters:,})^{rule.exponent:.3g}"
    yield "rate by the ladder's rule", said + (f"; the recipe has {own:.3g}" if own else "")


def _print(found: LadderResult, plan: Plan) -> None:
    out = console(width=WIDTH)
    out.print(f"{found.study.figure.title}: {found.prediction.convention}")
    out.print(f"loss: {found.study.published.convention}")
    out.print()
    out.print(terminal_table(tables.runs_grid(found.prediction)))
    out.print()
    out.print(terminal_table(tables.law_grid(found.prediction.law)))
    out.print()
    recipe = f"{found.recipe.name} on {found.recipe.cluster.name}"
    rows = [*predicted_rows(found), *tables.plan_rows(plan)]
    out.print(terminal_table(tables.pairs(recipe, rows)))
    out.print()
    for note in found.notes:
        out.print(note)
