"""Study search: Optuna proposes points, each is a run, and the best are printed.

Optuna's journal keeps what was tried. Stopped or killed, the same command goes on: it looks
after the runs that are under way, has the results of those that ended, and proposes what is
still to be tried.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from rich.table import Table

from command.outcome import Status, print_result
from command.study.journal import StudyJournal, distribution_of
from command.study.outcomes import PointOutcome
from command.study.request import StudyRequest
from command.study.runs import run_all, runner_of, say_ended
from command.study.schema import Point, SearchStudy, as_scalar
from components.config.schema.types import thaw
from components.terminal import console, say

SHOWN = 10  # all are in the journal
JOURNAL = "study.journal"
TRIED = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)


def _open_trials(study: SearchStudy, journal: Path | None) -> optuna.Study:
    """Find what was tried before, kept in the file ``journal``, or nowhere."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = None
    if journal is not None:
        journal.parent.mkdir(parents=True, exist_ok=True)
        storage = JournalStorage(StudyJournal(journal, study))
    trials = optuna.create_study(
        storage=storage,
        study_name=study.name,
        direction=study.objective.direction,
        load_if_exists=True,
    )
    # The journal keeps no generator's state: where a search goes on it draws anew.
    seed = study.search.seed + len(trials.trials)
    sampler = TPESampler if study.search.sampler == "tpe" else RandomSampler
    trials.sampler = sampler(seed=seed)
    for trial in trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if trial.params.keys() != study.space.keys():  # a kill came between its records
            trials.tell(trial.number, state=TrialState.FAIL)
    return trials


def _tried(trials: optuna.Study) -> list[FrozenTrial]:
    """List the trials that have a point."""
    return trials.get_trials(deepcopy=False, states=TRIED)


def _draw(study: SearchStudy, trials: optuna.Study) -> Iterator[tuple[int, Point]]:
    """Yield the trials that were under way, then new ones until there are enough."""
    begun = trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for trial in begun[: study.search.trials]:
        yield trial.number, _point(study, trial.params)
    space = {key: distribution_of(values) for key, values in study.space.items()}
    while len(_tried(trials)) < study.search.trials:
        suggested = trials.ask(space)
        yield suggested.number, _point(study, suggested.params)


def _point(study: SearchStudy, params: Mapping[str, Any]) -> Point:
    """Return the values of a point: Optuna has a mapping or a list as text."""
    listed = {key: study.space[key] for key in params}
    return {
        key: next(value for value in values if as_scalar(value) == params[key])
        if isinstance(values, tuple)
        else params[key]
        for key, values in listed.items()
    }


def _close(trials: optuna.Study, number: int, ended: PointOutcome) -> None:
    """Close a trial: one without a figure is pruned, which the sampler takes for the worst."""
    if ended.figure is None:
        trials.set_user_attr(str(number), ended.why)
        trials.tell(number, state=TrialState.PRUNED)
    else:
        trials.tell(number, ended.figure)
    say_ended(number + 1, trials.trials[number].params, ended)


def _best_first(trials: optuna.Study) -> list[FrozenTrial]:
    """List the points that have a figure, each once, the best before the others."""
    found = {
        frozenset(trial.params.items()): trial
        for trial in trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    }
    sign = -1.0 if trials.direction == StudyDirection.MAXIMIZE else 1.0
    return sorted(found.values(), key=lambda trial: sign * float(trial.value or 0.0))


def _as_json(
    study: SearchStudy, trials: optuna.Study, published: float | None
) -> dict[str, Any]:
    """Return what ``output=json`` prints; ``figure`` is in the objective's own unit."""
    why = trials.user_attrs
    return {
        "study": study.name,
        "objective": study.objective.model_dump(mode="json"),
        "published": {"point": thaw(study.published), "planned_figure": published},
        "trials": [
            {"point": t.params, "figure": t.value, "why": why.get(str(t.number), "")}
            for t in _tried(trials)
        ],
        "best": [{"point": t.params, "figure": t.value} for t in _best_first(trials)[:SHOWN]],
    }


def _print(study: SearchStudy, trials: optuna.Study, published: float | None) -> None:
    """Print the best points, the published one beside them where it was planned."""
    best = _best_first(trials)
    table = Table(box=None)
    for name in ("", *study.space, study.objective.measured):
        table.add_column(name, justify="right", overflow="fold")
    rows = [(str(i), trial.params, trial.value) for i, trial in enumerate(best[:SHOWN], 1)]
    if published is not None:
        rows.append(("published", {**study.published}, published))
    for name, point, figure in rows:
        table.add_row(
            name, *(str(as_scalar(point[key])) for key in study.space), f"{figure:,.6g}"
        )
    out = console(width=160)
    out.print(table)
    tried = len(_tried(trials))
    without = sum(trial.state == TrialState.PRUNED for trial in trials.trials)
    out.print(f"{tried} trials: {len(best)} points with a figure, {without} trials without")


def search_points(request: StudyRequest, study: SearchStudy) -> Status:
    """Search until the study has its trials, and print what was found.

    Raises:
        RecipeError: no plan knows what is compared, or a result lacks it.
    """
    planned = request.action == "plan"
    trials = _open_trials(study, None if planned else request.folder / JOURNAL)
    start, published = runner_of(request), None
    try:
        run_all(start, _draw(study, trials), partial(_close, trials), study.search)
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on. Kept in {request.folder}")
        return Status.STOPPED
    if planned and study.published.keys() == study.space.keys():
        ended = start(study.published)()
        published = ended.figure if ended else None
    tree = _as_json(study, trials, published)
    print_result(request.output, tree, lambda: _print(study, trials, published))
    found = trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return Status.DONE if found else Status.WRONG_INPUT
