"""What a study found: the best points, as a table or as JSON."""

from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from rich.table import Table

from command.study_search import reason
from components.spec.study_searched import Searched
from components.terminal import console

SHOWN = 10  # all are in the journal


def best_first(trials: optuna.Study) -> list[FrozenTrial]:
    """List the points that have a figure, each once, the best before the others."""
    found = {
        frozenset(trial.params.items()): trial
        for trial in trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    }
    sign = -1.0 if trials.direction == StudyDirection.MAXIMIZE else 1.0
    return sorted(found.values(), key=lambda trial: sign * float(trial.value or 0.0))


def trials_tree(
    study: Searched, trials: optuna.Study, published: float | None
) -> dict[str, Any]:
    """Return what ``output=json`` prints; ``figure`` is in the objective's own unit."""
    return {
        "study": study.name,
        "objective": study.objective.model_dump(mode="json"),
        "published": {"point": dict(study.published), "planned_figure": published},
        "trials": [
            {
                "point": trial.params,
                "figure": trial.value,
                "why": reason(trials, trial),
            }
            for trial in trials.trials
        ],
        "best": [{"point": t.params, "figure": t.value} for t in best_first(trials)[:SHOWN]],
    }


def print_trials(study: Searched, trials: optuna.Study, published: float | None) -> None:
    """Print the best points, the published one beside them where it was planned."""
    best = best_first(trials)
    table = Table(box=None)
    for name in ("", *study.space, study.objective.measured):
        table.add_column(name, justify="right", overflow="fold")
    for place, trial in enumerate(best[:SHOWN], start=1):
        values = [str(trial.params[key]) for key in study.space]
        table.add_row(str(place), *values, f"{trial.value:,.6g}")
    if published is not None:
        values = [str(study.published[key]) for key in study.space]
        table.add_row("published", *values, f"{published:,.6g}")
    out = console(width=160)
    out.print(table)
    tried = len(trials.trials)
    without = sum(trial.state == TrialState.PRUNED for trial in trials.trials)
    out.print(f"{tried} trials: {len(best)} points with a figure, {without} trials without")
