"""Predict the loss and learning rate of a large run from small ones, next to its bill."""

import shlex
from collections.abc import Iterator
from functools import partial

from command.arguments import Arguments
from command.composition.compose import compose_recipe
from command.outcome import print_result
from command.study.ladder import LadderResult, read_ladder
from components.planner.plan import plan_recipe
from components.report.document import print_document, write_document
from components.report.html import check_destination, check_plotly
from components.report.prediction import (
    PredictedRecipe,
    by_budgets_row,
    prediction_document,
    target_rows,
)
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
    said = _said(found, arguments)
    document = prediction_document(said, found.prediction, found.law, plan)
    show = partial(print_document, document, console(width=WIDTH))
    print_result(arguments.output, tree, show)
    if arguments.file is not None:
        page = write_document(document, arguments.file)
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
    yield from target_rows(found.prediction)
    if found.by_budgets is not None:
        yield by_budgets_row(found.by_budgets)
    rule, own = found.study.ladder.lr, found.as_json()["lr_of_recipe"]
    said = f"{found.lr:.3g}, {rule.base:g} (N / {rule.at_parameters:,})^{rule.exponent:.3g}"
    yield "rate by the ladder's rule", said + (f"; the recipe has {own:.3g}" if own else "")
