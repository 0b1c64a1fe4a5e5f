"""A ladder's finished runs, and what their law says of a recipe at its own size."""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.study.outcomes import result_in
from command.study.request import StudyRequest, ask
from command.study.schema import FLOPS, PARAMETERS, LadderStudy, Point
from components.command_line import command_line
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.planner.result import Plan
from components.report.document import ReportDocument
from components.report.prediction import (
    PredictedRecipe,
    by_budgets_row,
    prediction_document,
    target_rows,
)
from components.report.proposal import LadderSays
from components.run.records import DerivedRecord, read_record
from components.scaling.isoflop import BestByBudgets, best_by_budgets
from components.scaling.law import FLOPS_PER_PARAMETER, Law
from components.scaling.prediction import Prediction, predict

LadderRow = tuple[int, int, float, bool]  # parameters, tokens, loss, whether it is held out


@dataclass(frozen=True, kw_only=True)
class LadderResult:
    """A ladder, what it predicts of ``recipe``, the rate by its rule, and what limits both."""

    study: LadderStudy
    recipe: Recipe
    prediction: Prediction
    law: Law
    by_budgets: BestByBudgets | None
    lr: float
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the tree that ``output=json`` promises."""
        return {
            "study": self.study.name,
            "recipe": self.recipe.name,
            "cluster": self.recipe.cluster.name,
            **self.prediction.model_dump(mode="json"),
            "by_budgets": self.by_budgets and self.by_budgets.model_dump(mode="json"),
            "lr": self.lr,
            "lr_of_recipe": _rate_of(self.recipe),
            "notes": self.notes,
        }

    def document(self, plan: Plan, words: Sequence[str]) -> ReportDocument:
        """Set the prediction beside a plan; its command is the user's, without local paths."""
        paths = ("file=", "output=", "run=")
        said = PredictedRecipe(
            title=f"{self.recipe.name} on {self.recipe.cluster.name}, predicted by "
            f"{self.study.name}",
            unit=self.study.published.unit,
            convention=self.study.published.convention,
            notes=self.notes,
            rows=tuple(self._rows()),
            again=shlex.join([
                "python",
                "run.py",
                *(word for word in words if not word.startswith(paths)),
            ]),
        )
        return prediction_document(said, self.prediction, self.law, plan)

    def for_proposal(self) -> LadderSays:
        """Return what a proposal has of it."""
        return LadderSays(study=self.study.name, rows=tuple(self._rows()), notes=self.notes)

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Give label and text of what is predicted, the rate by the ladder's rule among it."""
        yield from target_rows(self.prediction)
        if self.by_budgets is not None:
            yield by_budgets_row(self.by_budgets)
        rule, own = self.study.ladder.lr, _rate_of(self.recipe)
        said = f"{self.lr:.3g}, {rule.base:g} (N / {rule.at_parameters:,})^{rule.exponent:.3g}"
        yield "rate by the ladder's rule", said + (f"; the recipe has {own:.3g}" if own else "")


def read_ladder(arguments: Arguments, recipe: Recipe) -> LadderResult:
    """Fit the runs of the ladder ``study=``, and predict the recipe by their law.

    Raises:
        RecipeError: no ladder is named, runs are missing, or they do not determine a law.
    """
    words = [f"study={arguments.study}", "action=report"]
    request = ask(words if arguments.run is None else [*words, f"run={arguments.run}"])
    study = request.study
    if not isinstance(study, LadderStudy):
        remedy = "a ladder is read (docs/scaling.md); -m plans the points of any other study"
        raise RecipeError("study", f"{study.name} is no ladder", remedy)
    rows = finished_runs(request, study)
    active, tokens = non_embedding(recipe), recipe.budget.total_tokens
    prediction, law = predict(rows, active, tokens)
    best, missed = _by_budgets(study, rows, FLOPS_PER_PARAMETER * active * tokens)
    small = read_recipe(request.folder_of(study.points[-1]) / "recipe.json")
    return LadderResult(
        study=study,
        recipe=recipe,
        prediction=prediction,
        law=law,
        by_budgets=best,
        lr=float(f"{study.ladder.lr.at(active):.3g}"),
        notes=(*_notes(recipe, small, prediction, study), *missed),
    )


def non_embedding(recipe: Recipe) -> int:
    """Count the parameters that a token uses, without the embedding and an untied head."""
    counted = recipe.derived.parameters
    return counted.active - counted.embedding


def finished_runs(request: StudyRequest, study: LadderStudy) -> list[LadderRow]:
    """List parameters, tokens and loss of each run, and whether it is held out of the fit.

    Raises:
        RecipeError: some have not finished, or a size is not what the file says.
    """
    rows = []
    for point in study.points:
        ending = result_in(request, point)
        if ending is not None and ending.figure is not None:
            size = _checked_size(request.folder_of(point), point)
            tokens = int(ending.found["tokens"])
            rows.append((size, tokens, ending.figure, study.is_held_out(point)))
    if len(rows) < len(study.points):
        problem = f"{len(rows)} of {len(study.points)} runs of {study.name} have a loss in"
        train = command_line("-m", f"study={request.given}")
        remedy = f"train them: {train}; or name their run=FOLDER"
        raise RecipeError("study", f"{problem} {request.folder}", remedy)
    return rows


def _by_budgets(
    study: LadderStudy, rows: Sequence[LadderRow], flops: float
) -> tuple[BestByBudgets | None, tuple[str, ...]]:
    """Find the best size of the target's FLOPs by parabolas, where runs share budgets."""
    if study.ladder.flops is None:
        return None, ()
    runs = defaultdict[float, list[tuple[float, float]]](list)
    for point, (parameters, _, loss, _) in zip(study.points, rows, strict=True):
        runs[float(point[FLOPS])].append((parameters, loss))
    try:
        return best_by_budgets(runs, flops), ()
    except RecipeError as error:
        return None, (f"no best size by parabolas of budgets: {error.problem}",)


def _checked_size(run: Path, point: Point) -> int:
    """Compare what the run counted with what the ladder's file says."""
    stated = int(point[PARAMETERS])
    counted = read_record(run / "derived.json", DerivedRecord).parameters
    found = (counted.active or counted.total) - (counted.embedding or 0)
    if found != stated:
        problem = f"{stated:,} parameters without the embedding, but {run.name} has {found:,}"
        raise RecipeError("study.ladder.sizes", problem, f"write {PARAMETERS}: {found}")
    return found


def _rate_of(recipe: Recipe) -> float | None:
    return recipe.optimizer.get("lr")


def _notes(recipe: Recipe, small: Recipe, found: Prediction, study: LadderStudy) -> list[str]:
    """Say what a reader has to know before the figure is used."""
    beyond = found.beyond
    notes = [
        f"extrapolated: {beyond.flops:.3g} times the FLOPs of the largest fitted run "
        f"({beyond.parameters:.3g} times its parameters, {beyond.tokens:.3g} its tokens)",
        "the interval is of the fit alone: it knows no error of the law's form beyond the runs",
    ]
    if small.model["vocab_size"] != recipe.model["vocab_size"]:
        notes.append(
            f"losses compare only with the same tokenizer and text: this one is of "
            f"{small.model['vocab_size']:,} pieces ({study.objective.measured}), "
            f"{recipe.name} has {recipe.model['vocab_size']:,}"
        )
    return notes
