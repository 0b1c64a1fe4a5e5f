"""Optuna proposes points, each is a run, and the results teach it where to look next.

Optuna's journal keeps what was tried. Stopped or killed, the same command goes on: it looks
after the runs that are under way, has the results of those that ended, and proposes what is
still to be tried.
"""

import time
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from command.study_runs import Ended, Runner
from components.errors import RecipeError
from components.spec.study_fields import Value
from components.spec.study_searched import Interval, Searched


def open_trials(study: Searched, journal: Path | None) -> optuna.Study:
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


def _sampler(study: Searched, tried: int) -> BaseSampler:
    """Draw anew where a search goes on: the journal keeps no generator's state."""
    seed = study.search.seed + tried
    return TPESampler(seed=seed) if study.search.sampler == "tpe" else RandomSampler(seed=seed)


def search(
    study: Searched, trials: optuna.Study, runner: Runner, say: Callable[[FrozenTrial], None]
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
        _tell(trials, trial, Ended(None, f"{error.path}: {error.problem}"), say)


def _tell(
    trials: optuna.Study, trial: FrozenTrial, ended: Ended, say: Callable[[FrozenTrial], None]
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


def _distributions(study: Searched) -> dict[str, BaseDistribution]:
    return {key: _distribution(values) for key, values in study.space.items()}


def _distribution(values: tuple[Value, ...] | Interval) -> BaseDistribution:
    if isinstance(values, Interval):
        return FloatDistribution(values.low, values.high, log=values.log)
    return CategoricalDistribution(values)
