"""Runs of a sweep: one folder, in it a run folder a point; the same command goes on with them.

They are handed to a scheduler, or trained here one after the other. Then the folder has a
table, too, written anew after every run.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cluster.clients import scheduler_for
from cluster.job import job_settings
from cluster.scheduler_command import cached_answers
from cluster.status import status_of
from cluster.user import read_user
from command.arguments import ROOT, Arguments, read_point
from command.composition.compose import compose_recipe
from command.jobs.status import print_runs
from command.jobs.submission import CheckedRun, submit_run
from command.outcome import ActionResult, Status, attempt
from command.study.runs import check_submission, train_run
from command.study.sweep_points import folder_of_runs, labels, name_of
from command.study.sweep_table import SweepTable
from command.words import SWEEP, check_words, keys_of
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.report.html import share_script
from components.run.folder import RunFolder
from components.terminal import say

RUNS = Path("runs")  # where runs of this machine lie, too, that are no sweep's
FINISHED = "finished"


@dataclass(frozen=True)
class SweepPoint:
    """A point, and its run folder, which is named after what it changes."""

    label: str
    arguments: Arguments
    path: Path


def _look_at(
    points: Sequence[Sequence[str]],
    action: str,
    look: Callable[[SweepPoint], None],
    *,
    beside: Sequence[str] = (),
    runs: Path = ROOT / "runs",
) -> tuple[list[SweepPoint], list[Status]]:
    """Look at all points before any of them runs; those that cannot be are told."""
    found: list[SweepPoint] = []
    name = name_of(points)

    def read(words: Sequence[str], label: str) -> ActionResult:
        arguments = read_point(words)
        check_words(action, [*keys_of(words), *beside])
        point = SweepPoint(label, arguments, folder_of_runs(arguments, name, runs) / label)
        found.append(point)
        look(point)
        return ActionResult()

    statuses: list[Status] = []
    for words, label in zip(points, labels(points), strict=True):
        statuses.append(attempt(partial(read, words, label), words, label).status)
        if statuses[-1] >= Status.INTERRUPTED:
            break
    return found, statuses


def train_all(points: Sequence[Sequence[str]]) -> Status:
    """Train here, one point after the other, and write and print a table of them.

    Given again, the same command leaves finished points alone, goes on with those that were
    interrupted, and begins the others. Who stops a run stops the sweep.
    """
    table, waiting = SweepTable(points, labels(points)), list[SweepPoint]()

    def look(point: SweepPoint) -> None:
        if _stands(point) == FINISHED:
            say(f"[{point.label}] left as it is: it has finished")
        else:
            waiting.append(point)
        table.take(point.label, point.path)

    found, statuses = _look_at(points, "train", look, runs=RUNS)
    if statuses[-1] >= Status.INTERRUPTED or not found:
        return max(statuses)
    folder = found[0].path.parent
    if waiting:
        say(f"sweep: {folder}  (the same command goes on with it)")
        table.write(folder)
        share_script(folder)
    for place, point in enumerate(waiting, 1):
        say(f"[{point.label}] {place} of {len(waiting)}")
        train = partial(train_run, point.arguments, point.path)
        statuses.append(attempt(train, point.arguments.words, point.label).status)
        table.take(point.label, point.path)
        table.write(folder)
        if statuses[-1] == Status.STOPPED or statuses[-1] >= Status.INTERRUPTED:
            break
    table.show(folder)
    return max(statuses)


def _stands(point: SweepPoint) -> str | None:
    """Return how the run of a point ended; None if it has not, or is not there.

    Raises:
        RecipeError: the point cannot be, or another recipe is in its folder.
    """
    recipe, folder = compose_recipe(point.arguments), RunFolder(point.path)
    if not folder.recipe.exists():
        return None
    if read_recipe(folder.recipe) != recipe:
        remedy = "name another run=FOLDER, or move that one away"
        raise RecipeError("run", f"{point.path} holds another recipe", remedy)
    return folder.ended


def submit_all(points: Sequence[Sequence[str]]) -> Status:
    """Submit to a batch cluster: all points are checked, then those that can run handed over.

    Given again, the same command submits what is not there; finished, queued and ended points
    are left alone. Of one user a queue may take fewer jobs than the points have: the others
    are told, and left for the same command.
    """
    taken = Counter[str]()
    ready: list[CheckedRun] = []

    def look(point: SweepPoint) -> None:
        ready.extend(_check(point, taken))

    with cached_answers():
        found, statuses = _look_at(points, "submit", look, beside=[SWEEP])
    if statuses[-1] >= Status.INTERRUPTED or not found:
        return max(statuses)
    first, chains = found[0].arguments, list[str]()
    for one in (one for one in ready if _admitted(one, taken)):
        submit = partial(_submit, one, first.at_most, chains)
        statuses.append(attempt(submit, one.arguments.words, one.path.name).status)
        if statuses[-1] >= Status.INTERRUPTED:
            break
    print_runs([one.path for one in found if (one.path / "recipe.json").exists()], first.output)
    return max(statuses)


def _check(point: SweepPoint, taken: Counter[str]) -> Sequence[CheckedRun]:
    """Check one point; what was handed over before is not ready for it again.

    Its jobs that still wait or run are ``taken`` from their queue.
    """
    arguments, path = point.arguments, point.path
    recipe = compose_recipe(arguments)
    one = check_submission(recipe, arguments, path)
    if one is None:
        taken.update(_standing_jobs(recipe, arguments, path))
        return ()
    if arguments.at_most is not None and one.settings.jobs > 1 and not one.scheduler.arrays:
        problem = f"{one.settings.jobs} jobs a run, and {one.scheduler.name} would start the "
        problem += "next run after the first of them"
        raise RecipeError("at_most", problem, "set cluster.jobs=1, or leave at_most out")
    return (one,)


def _standing_jobs(recipe: Recipe, arguments: Arguments, path: Path) -> dict[str, int]:
    """Count a run's jobs in its queue, where that takes only so many of one user."""
    user = read_user(recipe.cluster.name, arguments.site)
    settings = job_settings(recipe, user, repository=ROOT, run=path)
    if settings.runs_at_once is None:
        return {}
    return {settings.queue: len(status_of(path, scheduler_for(recipe.cluster)).queued or ())}


def _admitted(one: CheckedRun, taken: Counter[str]) -> bool:
    """Whether the queue takes the run beside what is there; if so, its jobs are taken."""
    settings = one.settings
    most = settings.limits.submitted if settings.limits else None
    there = taken[settings.queue]
    if most is not None and there and there + settings.submitted_jobs > most:
        jobs = "one job" if most == 1 else f"{most:,} jobs"
        way = "the same command submits it when others have ended"
        say(f"[{one.path.name}] not submitted: {settings.queue} takes {jobs} of a user; {way}")
        return False
    taken[settings.queue] += settings.submitted_jobs
    return True


def _submit(one: CheckedRun, at_most: int | None, chains: list[str]) -> ActionResult:
    """Submit a run, to begin after the one ``at_most`` places before it."""
    after = chains[-at_most] if at_most is not None and len(chains) >= at_most else None
    chains.append(submit_run(one, after=after))
    wait = f", after {after}" if after else ""
    say(f"[{one.path.name}] submitted {chains[-1]}{wait}")
    return ActionResult()
