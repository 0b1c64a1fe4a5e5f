"""Study search: Optuna proposes points, each is a run, and the best are printed.

Optuna's journal keeps what was tried. Stopped or killed, the same command goes on: it looks
after the runs that are under way, has the results of those that ended, and proposes what is
still to be tried.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from rich.table import Table

from command.outcome import Status
from command.study.request import StudyRequest
from command.study.runs import PlannedRuns, PointEnding, Runner, planned_key, runner_of
from command.study.schema import Interval, SearchStudy, Value
from components.errors import RecipeError
from components.terminal import console, say, tell


def open_trials(study: SearchStudy, journal: Path | None) -> optuna.Study:
    """Find what was tried before, kept in the file ``journal``, or nowhere."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage: BaseStorage = InMemoryStorage()
    if journal is not None:
        journal.parent.mkdir(parents=True, exist_ok=True)
        storage = JournalStorage(JournalFileBackend(str(journal)))
    trials = optuna.create_study(
        storage=storage,
        study_name=study.name,
        direction=study.objective.direction,
        load_if_exists=True,
    )
    trials.sampler = _sampler(study, len(trials.trials))
    return trials


def _sampler(study: SearchStudy, tried: int) -> BaseSampler:
    """Draw anew where a search goes on: the journal keeps no generator's state."""
    seed = study.search.seed + tried
    return TPESampler(seed=seed) if study.search.sampler == "tpe" else RandomSampler(seed=seed)


def search(
    study: SearchStudy, trials: optuna.Study, runner: Runner, say: Callable[[FrozenTrial], None]
) -> None:
    """Try points until there are as many as the study wants, and ``say`` how each ended."""
    for trial in running(trials):
        _start(trials, trial, runner, say)  # killed between asking and starting, perhaps
    while True:
        for trial in running(trials):
            ended = runner.look(trial.params)
            if ended is not None:
                _tell(trials, trial, ended, say)
        under_way = running(trials)
        if len(trials.trials) < study.search.trials and len(under_way) < study.search.at_once:
            number = trials.ask(_distributions(study)).number
            _start(trials, trials.trials[number], runner, say)
        elif under_way:
            time.sleep(study.search.poll_seconds)
        else:
            return


def running(trials: optuna.Study) -> list[FrozenTrial]:
    """List the trials that have not ended."""
    return trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def _start(
    trials: optuna.Study,
    trial: FrozenTrial,
    runner: Runner,
    say: Callable[[FrozenTrial], None],
) -> None:
    try:
        runner.start(trial.params)
    except RecipeError as error:
        _tell(trials, trial, PointEnding(None, f"{error.path}: {error.problem}"), say)


def _tell(
    trials: optuna.Study,
    trial: FrozenTrial,
    ended: PointEnding,
    say: Callable[[FrozenTrial], None],
) -> None:
    """Close a trial: one without a figure is pruned, which the sampler takes for the worst."""
    if ended.figure is None:
        trials.set_user_attr(str(trial.number), ended.why)
        trials.tell(trial.number, state=TrialState.PRUNED)
    else:
        trials.tell(trial.number, ended.figure)
    say(trials.trials[trial.number])


def reason(trials: optuna.Study, trial: FrozenTrial) -> str:
    """Say why a trial has no figure."""
    return str(trials.user_attrs.get(str(trial.number), ""))


def _distributions(study: SearchStudy) -> dict[str, BaseDistribution]:
    return {key: _distribution(values) for key, values in study.space.items()}


def _distribution(values: tuple[Value, ...] | Interval) -> BaseDistribution:
    if isinstance(values, Interval):
        return FloatDistribution(values.low, values.high, log=values.log)
    return CategoricalDistribution(values)


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
    study: SearchStudy, trials: optuna.Study, published: float | None
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


def print_trials(study: SearchStudy, trials: optuna.Study, published: float | None) -> None:
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


JOURNAL = "study.journal"


def search_points(asked: StudyRequest, study: SearchStudy) -> Status:
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


def _figure_of_published(asked: StudyRequest, study: SearchStudy) -> float | None:
    """Plan the point that the work published, if it names one."""
    if study.published.keys() != study.space.keys():
        return None
    runner = PlannedRuns(ask=asked.arguments_of, key=planned_key(study))
    runner.start(study.published)
    return runner.look(study.published).figure


def _say_trial(trials: optuna.Study, trial: FrozenTrial) -> None:
    point = ", ".join(f"{key}={value}" for key, value in trial.params.items())
    figure = reason(trials, trial) if trial.value is None else f"{trial.value:,.6g}"
    say(f"[{trial.number + 1}] {point}: {figure}")
