"""A sweep over a batch cluster: every point is checked, then those that can run are submitted.

Each point has a run folder below the sweep's, named after what it changes. Given again, the
same command submits only what is not there: finished, queued and ended points are left alone.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from command.actions.status import print_runs
from command.actions.submit import Ready, check, check_not_submitted, hand_over
from command.arguments import Arguments, read_point
from command.compose import compose_recipe
from command.faults import attempt
from command.options import SWEEP, check_words, keys_of
from command.outcome import ActionResult, Status
from command.sweep import folder_of_runs, labels
from components.errors import RecipeError
from components.terminal import say

PASSING = ("action=", "again=", "force=", "at_most=", "output=")


def submit_all(points: Sequence[Sequence[str]]) -> Status:
    """Submit what can be and return the highest exit status."""
    ready: list[Ready] = []
    folders: list[Path] = []
    statuses = []
    for words, label in zip(points, labels(points), strict=True):
        look = partial(_look, points, words, label, ready, folders)
        statuses.append(attempt(look, words, label).status)
        if statuses[-1] >= Status.INTERRUPTED:
            return statuses[-1]
    statuses += _submit(ready, read_point(points[0]).at_most)
    written = [path for path in folders if (path / "recipe.json").exists()]
    print_runs(written, read_point(points[0]).output)
    return max(statuses)


def _look(
    points: Sequence[Sequence[str]],
    words: Sequence[str],
    label: str,
    ready: list[Ready],
    folders: list[Path],
) -> ActionResult:
    """Note a point's folder, and what can be handed over."""
    arguments = read_point(words)
    check_words("submit", [*keys_of(words), SWEEP])
    path = _sweep_folder(arguments, points) / label
    folders.append(path)
    if (one := _check(arguments, path)) is not None:
        ready.append(one)
    return ActionResult()


def _check(arguments: Arguments, path: Path) -> Ready | None:
    """Check one point; what was handed over before is not ready for it again."""
    recipe = compose_recipe(arguments)
    try:
        check_not_submitted(recipe, path, again=arguments.again)
    except RecipeError as standing:
        if standing.path != "run":
            raise
        say(f"[{path.name}] left as it is: {standing.problem}")
        return None
    one = check(recipe, arguments, path)
    if arguments.at_most is not None and one.settings.jobs > 1 and not one.scheduler.arrays:
        raise RecipeError(
            "at_most",
            f"{one.settings.jobs} jobs a run, and {one.scheduler.name} would start the next "
            "run after the first of them",
            "set cluster.jobs=1, or leave at_most out",
        )
    return one


def _submit(ready: Sequence[Ready], at_most: int | None) -> list[Status]:
    """Hand over one chain a point; each waits for the one ``at_most`` places before it."""
    chains: list[str] = []
    return [
        attempt(partial(_hand_over, one, at_most, chains), one.words, one.path.name).status
        for one in ready
    ]


def _hand_over(one: Ready, at_most: int | None, chains: list[str]) -> ActionResult:
    after = chains[-at_most] if at_most is not None and len(chains) >= at_most else None
    chains.append(hand_over(one, after=after))
    wait = f", after {after}" if after else ""
    say(f"[{one.path.name}] submitted {chains[-1]}{wait}")
    return ActionResult()


def _sweep_folder(arguments: Arguments, points: Sequence[Sequence[str]]) -> Path:
    """Return the folder that ``run=`` names, or one that the same points find again."""
    kept = [[word for word in words if not word.startswith(PASSING)] for words in points]
    said = "\n".join(" ".join(words) for words in kept)
    return folder_of_runs(arguments, f"{Path(arguments.recipe or '').stem}-sweep", said)
