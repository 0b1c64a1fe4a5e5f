"""Sweeps (``-m``): the points of a command, their labels and folders, and their submission."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.user import PLAIN, read_user
from command.arguments import ROOT, Arguments, groups, parse_word, read_point
from command.compose import compose_group, compose_recipe
from command.options import RAW_KEYS
from command.outcome import ActionResult, Status, attempt
from command.words import SWEEP, check_words, keys_of
from components.errors import RecipeError
from components.terminal import say

if TYPE_CHECKING:
    from command.actions.submit import Ready

STUDY = "study="
MOST_POINTS = 10_000
SWEEPS = frozenset({"-m", "--multirun"})
THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
LONGEST = 200  # a file system takes 255
PASSING = ("action=", "again=", "force=", "at_most=", "output=")


def split_sweep(words: Sequence[str]) -> tuple[bool, list[list[str]]]:
    """Take ``-m`` away and list the points, the last key changing fastest.

    Raises:
        RecipeError: a word is no ``key=value``, or its values cannot be listed or are too many.
    """
    sweeping = not SWEEPS.isdisjoint(words)
    options = [_values_of(word, sweeping) for word in words if word not in SWEEPS]
    if prod(map(len, options)) > MOST_POINTS:
        longest = max(options, key=len)[0].partition("=")[0]
        problem = f"a sweep has {MOST_POINTS:,} points at most"
        raise RecipeError(longest, problem, "list fewer values, or let a study search")
    return sweeping, [list(point) for point in product(*options)]


def study_words(words: Sequence[str]) -> list[str] | None:
    """Return a study's words without ``-m``; nothing where no study is asked for.

    Raises:
        RecipeError: a study without ``-m`` whose report is not asked for, or more than one.
    """
    named = sum(word.startswith(STUDY) for word in words)
    if not named:
        return None
    # A study's report is one page, not many runs.
    if SWEEPS.isdisjoint(words) and "action=report" not in words:
        raise RecipeError("study", "a study is many runs", "write -m before it")
    if named > 1:
        raise RecipeError("study", "given twice", "keep one of them")
    return [word for word in words if word not in SWEEPS]


def submits(points: Sequence[Sequence[str]]) -> bool:
    """Return whether a sweep is for a scheduler: asked for, or by the cluster's nature."""
    arguments = read_point(points[0])
    if arguments.action != "auto" or "cluster" not in arguments.choices:
        return arguments.action == "submit"
    return str(compose_group("cluster", arguments.choices["cluster"])["scheduler"]) != "none"


def _values_of(word: str, sweeping: bool) -> list[str]:
    """List what a word stands for, a sweep of Hydra's grammar in the order of its writing."""
    key, _, text = word.partition("=")
    is_raw = key in RAW_KEYS and not (key == "recipe" and sweeping)
    if is_raw or not (override := parse_word(word)).is_sweep_override():
        return [word]
    if not sweeping:
        one = f"; one number is written {key}={text.replace(',', '_')}"
        way = "a sweep over values needs -m" + (one if THOUSANDS.fullmatch(text) else "")
        raise RecipeError(key, f"several values in {word!r}", way)
    kind, sweep = getattr(override.value_type, "name", ""), override.value()
    if kind == "INTERVAL_SWEEP":
        remedy = "a study searches it (docs/studies.md); here write values, or range(...)"
        raise RecipeError(key, f"{text} is no list of values", remedy)
    if getattr(sweep, "shuffle", False):
        problem = f"{text}: the same command finds its folder again, so nothing is shuffled"
        raise RecipeError(key, problem, "leave shuffle out")
    if kind == "GLOB_CHOICE_SWEEP" and key not in groups():
        remedy = f"it chooses files of a group: {', '.join(groups())}"
        raise RecipeError(key, f"{text}, but the values of {key} are in no folder", remedy)
    try:
        if kind == "GLOB_CHOICE_SWEEP":
            found = list(sweep.filter(groups()[key]))  # type: ignore[union-attr]
        else:
            found = list(islice(override.sweep_string_iterator(), MOST_POINTS + 1))
    except ValueError as error:  # a step of nothing, a choice inside a choice
        problem = f"{text} cannot be listed: {str(error).splitlines()[0]}"
        raise RecipeError(key, problem, "write the values, separated by commas") from None
    if not found:
        raise RecipeError(key, f"{text} stands for no value", "write those that you mean")
    return [f"{key}={value}" for value in found]


def labels(points: Sequence[Sequence[str]]) -> list[str]:
    """Name each point by the words that not all points have, as a folder can be called."""
    common = set.intersection(*(set(words) for words in points))
    return [as_folder(word for word in words if word not in common) for words in points]


def as_folder(words: Iterable[str]) -> str:
    """Join words to the name of a folder; one that is too long is cut and stays its own."""
    name = ",".join(words)
    plain = "".join(c if PLAIN.fullmatch(c) and c != "/" else "_" for c in name)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def folder_of_runs(arguments: Arguments, stem: str, said: str) -> Path:
    """Return the folder that ``run=`` names, or one that the same words find again."""
    if arguments.run is not None:
        return arguments.run.absolute()
    user = read_user(arguments.choices.get("cluster", "local"), arguments.site)
    return Path(user.runs or ROOT / "runs").absolute() / f"{stem}-{_digest(said)}"


def submit_all(points: Sequence[Sequence[str]]) -> Status:
    """Submit to a batch cluster: all points are checked, then those that can run handed over.

    Each point has a run folder below the sweep's, named after what it changes. Given again, the
    same command submits what is not there; finished, queued and ended points are left alone.
    """
    from command.actions.status import print_runs

    kept = [[word for word in words if not word.startswith(PASSING)] for words in points]
    said = "\n".join(" ".join(words) for words in kept)  # the same points, the same folder
    ready: list[Ready] = []
    folders: list[Path] = []
    statuses = []

    def look(words: Sequence[str], label: str) -> ActionResult:
        """Note a point's folder, and what can be handed over."""
        arguments = read_point(words)
        check_words("submit", [*keys_of(words), SWEEP])
        stem = f"{Path(arguments.recipe or '').stem}-sweep"
        folders.append(folder_of_runs(arguments, stem, said) / label)
        if (one := _check(arguments, folders[-1])) is not None:
            ready.append(one)
        return ActionResult()

    for words, label in zip(points, labels(points), strict=True):
        statuses.append(attempt(partial(look, words, label), words, label).status)
        if statuses[-1] >= Status.INTERRUPTED:
            return statuses[-1]
    first, chains = read_point(points[0]), list[str]()
    for one in ready:
        submit = partial(_hand_over, one, first.at_most, chains)
        statuses.append(attempt(submit, one.arguments.words, one.path.name).status)
    print_runs([path for path in folders if (path / "recipe.json").exists()], first.output)
    return max(statuses)


def _check(arguments: Arguments, path: Path) -> "Ready | None":
    """Check one point; what was handed over before is not ready for it again."""
    from command.actions.submit import check, submitted_before  # takes its time

    recipe = compose_recipe(arguments)
    if (standing := submitted_before(recipe, path, again=arguments.again)) is not None:
        say(f"[{path.name}] left as it is: {standing.problem}")
        return None
    one = check(recipe, arguments, path)
    if arguments.at_most is not None and one.settings.jobs > 1 and not one.scheduler.arrays:
        problem = f"{one.settings.jobs} jobs a run, and {one.scheduler.name} would start the "
        problem += "next run after the first of them"
        raise RecipeError("at_most", problem, "set cluster.jobs=1, or leave at_most out")
    return one


def _hand_over(one: "Ready", at_most: int | None, chains: list[str]) -> ActionResult:
    """Submit a run, to begin after the one ``at_most`` places before it."""
    from command.actions.submit import hand_over

    after = chains[-at_most] if at_most is not None and len(chains) >= at_most else None
    chains.append(hand_over(one, after=after))
    wait = f", after {after}" if after else ""
    say(f"[{one.path.name}] submitted {chains[-1]}{wait}")
    return ActionResult()
