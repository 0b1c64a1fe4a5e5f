"""Study search: Optuna proposes points, each is a run, and the best are printed.

Optuna's journal records the trials. After an interruption the same command continues: it polls
active runs, reads the results of ended runs, and proposes the remaining points.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from command.study.outcomes import PointOutcome, Poll, attempt_point
from command.study.request import StudyRequest
from command.study.runs import SubmittedRun, runner_of
from command.study.schema import Point, QueueLimits, SearchStudy, as_scalar, point_text
from components.config.schema.types import to_plain
from components.terminal import create_console, log_line

SHOWN = 10  # the journal has all
JOURNAL = "study.journal"
TRIED = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)


def _open_trials(study: SearchStudy, journal: Path | None) -> optuna.Study:
    """Open the study's trials in the file ``journal``, or in memory."""
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
    # The journal has no generator state: a continued search draws with a new seed.
    seed = study.search.seed + len(trials.trials)
    sampler = TPESampler if study.search.sampler == "tpe" else RandomSampler
    trials.sampler = sampler(seed=seed)
    for trial in trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if trial.params.keys() != study.space.keys():  # killed between writing its records
            trials.tell(trial.number, state=TrialState.FAIL)
    return trials


def _tried(trials: optuna.Study) -> list[FrozenTrial]:
    """List the trials that have a point."""
    return trials.get_trials(deepcopy=False, states=TRIED)


def _draw(study: SearchStudy, trials: optuna.Study) -> Iterator[tuple[int, Point]]:
    """Yield the trials that were active, then new trials until there are enough."""
    begun = trials.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for trial in begun[: study.search.trials]:
        yield trial.number, _point(study, trial.params)
    space = {key: distribution_of(values) for key, values in study.space.items()}
    while len(_tried(trials)) < study.search.trials:
        suggested = trials.ask(space)
        yield suggested.number, _point(study, suggested.params)


def _point(study: SearchStudy, params: Mapping[str, Any]) -> Point:
    """Return a point's values. Optuna stores a mapping or a list as text."""
    listed = {key: study.space[key] for key in params}
    return {
        key: next(value for value in values if as_scalar(value) == params[key])
        if isinstance(values, tuple)
        else params[key]
        for key, values in listed.items()
    }


def _close(trials: optuna.Study, number: int, ended: PointOutcome) -> None:
    """Close a trial. A trial without a figure is pruned, which the sampler ranks worst."""
    if ended.figure is None:
        trials.set_user_attr(str(number), ended.why)
        trials.tell(number, state=TrialState.PRUNED)
    else:
        trials.tell(number, ended.figure)
    figure = ended.why if ended.figure is None else f"{ended.figure:,.6g}"
    log_line(f"[{number + 1}] {point_text(trials.trials[number].params)}: {figure}")


def _best_first(trials: optuna.Study) -> list[FrozenTrial]:
    """List the distinct points with a figure, best first."""
    best_trials = {
        frozenset(trial.params.items()): trial
        for trial in trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    }
    sign = -1.0 if trials.direction == StudyDirection.MAXIMIZE else 1.0
    return sorted(best_trials.values(), key=lambda trial: sign * float(trial.value or 0.0))


def _as_json(
    study: SearchStudy, trials: optuna.Study, published: float | None
) -> dict[str, Any]:
    """Return the object of ``output=json``; ``figure`` is in the objective's own unit."""
    why = trials.user_attrs
    return {
        "study": study.name,
        "objective": study.objective.model_dump(mode="json"),
        "published": {"point": to_plain(study.published), "planned_figure": published},
        "trials": [
            {"point": t.params, "figure": t.value, "why": why.get(str(t.number), "")}
            for t in _tried(trials)
        ],
        "best": [{"point": t.params, "figure": t.value} for t in _best_first(trials)[:SHOWN]],
    }


def _print(study: SearchStudy, trials: optuna.Study, published: float | None) -> None:
    """Print the best points, and the published point if it was planned."""
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
    out = create_console(width=160)
    out.print(table)
    tried = len(_tried(trials))
    without = sum(trial.state == TrialState.PRUNED for trial in trials.trials)
    out.print(f"{tried} trials: {len(best)} points with a figure, {without} trials without")


def run_all(
    start: Callable[[Point], Poll | PointOutcome],
    points: Iterable[tuple[int, Point]],
    finish: Callable[[int, PointOutcome], None],
    queue: QueueLimits,
) -> None:
    """Keep as many runs active as ``queue`` allows until every numbered point has ended.

    The cluster's queue may allow fewer runs per user.
    """
    waiting, under_way = iter(points), dict[int, Poll]()
    while True:
        for number, poll in list(under_way.items()):
            try:
                ended = poll()
            except OSError as error:  # an error of one point's folder
                ended = PointOutcome(None, f"cannot read the result: {error}")
            if ended is not None:
                del under_way[number]
                finish(number, ended)
        runs = (run for run in under_way.values() if isinstance(run, SubmittedRun))
        at_once = min([queue.at_once, *(run.most for run in runs if run.most is not None)])
        if len(under_way) < at_once and (drawn := next(waiting, None)) is not None:
            number, point = drawn
            begun = start(point)
            if isinstance(begun, PointOutcome):
                finish(number, begun)
            else:
                under_way[number] = begun
        elif under_way:
            time.sleep(queue.poll_seconds)
        else:
            return


def search_points(request: StudyRequest, study: SearchStudy) -> Status:
    """Search until the study has all its trials, and print the results."""
    planned = request.action == "plan"
    trials = _open_trials(study, None if planned else request.folder / JOURNAL)
    check, published = runner_of(request), None

    def start_point(point: Point) -> Poll | PointOutcome:
        return attempt_point(lambda: check(point)(), request, point)

    try:
        run_all(start_point, _draw(study, trials), partial(_close, trials), study.search)
    except KeyboardInterrupt:
        log_line(f"stopped; repeat the command to continue. Results: {request.folder}")
        return Status.STOPPED
    if planned and study.published.keys() == study.space.keys():
        ended = check(study.published)()()
        published = ended.figure if ended else None
    tree = _as_json(study, trials, published)
    print_result(request.output, tree, lambda: _print(study, trials, published))
    completed = trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return Status.DONE if completed else Status.WRONG_INPUT
