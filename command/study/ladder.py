"""Scaling ladder: its finished runs, and their law's prediction for a recipe at full size."""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.study.outcomes import result_in
from command.study.request import StudyRequest, read_study_request
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
from components.report.proposal import LadderSummary
from components.run.records import DerivedRecord, read_record
from components.scaling.isoflop import BestByBudgets, best_by_budgets
from components.scaling.law import FLOPS_PER_PARAMETER, Law
from components.scaling.prediction import LadderRow, Prediction, predict_target


@dataclass(frozen=True, kw_only=True)
class LadderResult:
    """A ladder, its prediction for ``recipe``, the learning rate by its rule, and caveats."""

    study: LadderStudy
    recipe: Recipe
    prediction: Prediction
    law: Law
    by_budgets: BestByBudgets | None
    lr: float
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the object of ``output=json``."""
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

    def build_document(self, plan: Plan, words: Sequence[str]) -> ReportDocument:
        """Return a document with prediction and plan; its command has no local paths."""
        paths = ("file=", "output=", "run=")
        predicted = PredictedRecipe(
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
        return prediction_document(predicted, self.prediction, self.law, plan)

    def for_proposal(self) -> LadderSummary:
        """Return the part of the prediction that a proposal contains."""
        return LadderSummary(study=self.study.name, rows=tuple(self._rows()), notes=self.notes)

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Yield labels and texts of the prediction, including the rate by the ladder's rule."""
        yield from target_rows(self.prediction)
        if self.by_budgets is not None:
            yield by_budgets_row(self.by_budgets)
        rule, own = self.study.ladder.lr, _rate_of(self.recipe)
        text = f"{self.lr:.3g}, {rule.base:g} (N / {rule.at_parameters:,})^{rule.exponent:.3g}"
        yield "learning rate by the rule", text + (f"; the recipe has {own:.3g}" if own else "")


def read_ladder(arguments: Arguments, recipe: Recipe) -> LadderResult:
    """Fit a law to the runs of the ladder ``study=``, and predict the recipe's loss."""
    words = [f"study={arguments.study}", "action=report"]
    request = read_study_request(
        words if arguments.run is None else [*words, f"run={arguments.run}"]
    )
    study = request.study
    if not isinstance(study, LadderStudy):
        remedy = "choose a ladder (docs/scaling.md), or add -m to plan the points of a study"
        raise RecipeError("study", f"{study.name} is not a ladder", remedy)
    rows = finished_runs(request, study)
    active, tokens = non_embedding(recipe), recipe.budget.total_tokens
    prediction, law = predict_target(rows, active, tokens)
    best, missed = _by_budgets(study, rows, FLOPS_PER_PARAMETER * active * tokens)
    small = read_recipe(request.folder_of(study.points[-1]) / "recipe.json")
    return LadderResult(
        study=study,
        recipe=recipe,
        prediction=prediction,
        law=law,
        by_budgets=best,
        lr=float(f"{study.ladder.lr.rate_at(active):.3g}"),
        notes=(*_notes(recipe, small, prediction, study), *missed),
    )


def non_embedding(recipe: Recipe) -> int:
    """Count the active parameters per token, without the embedding and an untied head."""
    counted = recipe.derived_numbers.parameters
    return counted.active - counted.embedding


def finished_runs(request: StudyRequest, study: LadderStudy) -> list[LadderRow]:
    """List each run's parameters, tokens and loss, and whether the fit holds it out."""
    rows = []
    for point in study.points:
        ending = result_in(request, point)
        if ending is not None and ending.figure is not None:
            size = _checked_size(request.folder_of(point), point)
            tokens = int(ending.run_results["tokens"])
            rows.append((size, tokens, ending.figure, study.is_held_out(point)))
    if len(rows) < len(study.points):
        problem = f"{len(rows)} of {len(study.points)} runs of {study.name} have a loss in"
        train = command_line("-m", f"study={request.given}")
        remedy = f"train the runs: {train}; or set run=FOLDER"
        raise RecipeError("study", f"{problem} {request.folder}", remedy)
    return rows


def _by_budgets(
    study: LadderStudy, rows: Sequence[LadderRow], flops: float
) -> tuple[BestByBudgets | None, tuple[str, ...]]:
    """Find the best size for the target's FLOPs by parabolas, if runs share budgets."""
    if study.ladder.flops is None:
        return None, ()
    runs = defaultdict[float, list[tuple[float, float]]](list)
    for point, (parameters, _, loss, _) in zip(study.points, rows, strict=True):
        runs[float(point[FLOPS])].append((parameters, loss))
    try:
        return best_by_budgets(runs, flops), ()
    except RecipeError as error:
        return None, (f"no best size from parabolas of the budgets: {error.problem}",)


def _checked_size(run: Path, point: Point) -> int:
    """Return the run's parameter count, checked against the ladder's file."""
    stated = int(point[PARAMETERS])
    counted = read_record(run / "derived.json", DerivedRecord).parameters
    count = (counted.active or counted.total) - (counted.embedding or 0)
    if count != stated:
        problem = f"{stated:,} parameters without the embedding, but {run.name} has {count:,}"
        raise RecipeError("study.ladder.sizes", problem, f"write {PARAMETERS}: {count}")
    return count


def _rate_of(recipe: Recipe) -> float | None:
    return recipe.optimizer.get("lr")


def _notes(
    recipe: Recipe, small: Recipe, prediction: Prediction, study: LadderStudy
) -> list[str]:
    """List the limits of the prediction."""
    beyond = prediction.beyond
    notes = [
        f"extrapolated: {beyond.flops:.3g} times the FLOPs of the largest fitted run "
        f"({beyond.parameters:.3g} times its parameters, {beyond.tokens:.3g} its tokens)",
        "the interval covers the fit, not errors of the law's form beyond the runs",
    ]
    if small.model["vocab_size"] != recipe.model["vocab_size"]:
        notes.append(
            f"losses are comparable only with the same tokenizer and text: the study has "
            f"{small.model['vocab_size']:,} pieces ({study.objective.measured}), "
            f"{recipe.name} has {recipe.model['vocab_size']:,}"
        )
    return notes
