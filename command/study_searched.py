"""A study that searches: Optuna looks for the best points, and they are printed."""

import json

import optuna
from optuna.trial import FrozenTrial, TrialState

from command.outcome import Status
from command.study_asked import Asked
from command.study_runner import planned_key, runner_of
from command.study_runs import Planned
from command.study_search import open_trials, reason, search
from command.study_table import print_trials, trials_tree
from components.spec.study_searched import Searched
from components.terminal import say, tell

JOURNAL = "study.journal"


def search_points(asked: Asked, study: Searched) -> Status:
    """Search until the study has its trials, and print what was found.

    Raises:
        RecipeError: no plan knows what is compared, or a result lacks it.
    """
    planned = asked.action == "plan"
    trials = open_trials(study, None if planned else asked.folder / JOURNAL)
    try:
        search(study, trials, runner_of(asked), lambda trial: _say_trial(trials, trial))
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on. Kept in {asked.folder}")
        return Status.STOPPED
    published = _figure_of_published(asked, study) if planned else None
    if asked.output == "json":
        tell(json.dumps(trials_tree(study, trials, published)))
    else:
        print_trials(study, trials, published)
    found = trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return Status.DONE if found else Status.WRONG_INPUT


def _figure_of_published(asked: Asked, study: Searched) -> float | None:
    """Plan the point that the work published, if it names one."""
    if study.published.keys() != study.space.keys():
        return None
    runner = Planned(ask=asked.arguments_of, key=planned_key(study))
    runner.start(study.published)
    return runner.look(study.published).figure


def _say_trial(trials: optuna.Study, trial: FrozenTrial) -> None:
    point = ", ".join(f"{key}={value}" for key, value in trial.params.items())
    figure = reason(trials, trial) if trial.value is None else f"{trial.value:,.6g}"
    say(f"[{trial.number + 1}] {point}: {figure}")
