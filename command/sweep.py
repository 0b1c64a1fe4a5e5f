"""A sweep over a batch cluster: every point is checked, then those that can run are submitted.

Each point has a run folder below the sweep's, named after what it changes. Given again, the
same command submits only what is not there: finished, queued and ended points are left alone.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.user import PLAIN, read_user
from command.actions.status import print_table
from command.actions.submit import Ready, check, check_not_submitted, hand_over
from command.arguments import ROOT, Arguments, read_point
from command.compose import compose_recipe
from command.outcome import Status
from components.errors import RecipeError

PASSING = ("action=", "again=", "force=", "at_most=", "output=")


def submit_all(points: Sequence[Sequence[str]]) -> int:
    """Submit what can be and return the highest exit status."""
    ready: list[Ready] = []
    worst, folders = Status.DONE, []
    for words, label in zip(points, labels(points), strict=True):
        try:
            arguments = read_point(words)
            path = _sweep_folder(arguments, points) / label
            folders.append(path)
            if (one := _check(arguments, path)) is not None:
                ready.append(one)
        except RecipeError as error:
            sys.stderr.write(f"[{label}] {error}\n")
            worst = Status.WRONG_INPUT
    try:
        _submit(ready, read_point(points[0]).at_most)
    except RecipeError as error:
        sys.stderr.write(f"{error}\n")
        worst = Status.WRONG_INPUT
    print_table([path for path in folders if (path / "recipe.json").exists()])
    return worst


def _check(arguments: Arguments, path: Path) -> Ready | None:
    """Check one point; what was handed over before is not ready for it again."""
    try:
        check_not_submitted(compose_recipe(arguments), path, again=arguments.again)
    except RecipeError as standing:
        sys.stderr.write(f"[{path.name}] left as it is: {standing.problem}\n")
        return None
    return check(arguments, path)


def _submit(ready: Sequence[Ready], at_most: int | None) -> None:
    """Hand over one chain a point; each waits for the one ``at_most`` places before it."""
    chains: list[str] = []
    for place, one in enumerate(ready):
        throttled = at_most is not None and place >= at_most
        after = chains[place - (at_most or 0)] if throttled else None
        chains.append(hand_over(one, after=after))
        wait = f", after {after}" if after else ""
        sys.stderr.write(f"[{one.path.name}] submitted {chains[-1]}{wait}\n")


def labels(points: Sequence[Sequence[str]]) -> list[str]:
    """Name each point by the words that not all points have, as a folder can be called."""
    common = set.intersection(*(set(words) for words in points))
    named = [",".join(word for word in words if word not in common) for words in points]
    return [
        "".join(c if PLAIN.fullmatch(c) and c != "/" else "_" for c in name) for name in named
    ]


def _sweep_folder(arguments: Arguments, points: Sequence[Sequence[str]]) -> Path:
    """Return the folder that ``run=`` names, or one that the same points find again."""
    named = arguments.folders.get("run")
    if named is not None:
        return named.absolute()
    user = read_user(arguments.choices["cluster"], arguments.site)
    kept = [[word for word in words if not word.startswith(PASSING)] for words in points]
    digest = hashlib.sha256("\n".join(" ".join(words) for words in kept).encode())
    stem = Path(arguments.recipe or "").stem
    return (
        Path(user.runs or ROOT / "runs").absolute() / f"{stem}-sweep-{digest.hexdigest()[:8]}"
    )
