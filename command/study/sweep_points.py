"""Sweeps (``-m``): the points of a command, and the names of their folders."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, product
from math import prod
from pathlib import Path

from cluster.user import PLAIN, read_user
from command.arguments import OWN_FILES, ROOT, Arguments, groups, parse_word, writes_recipe
from command.composition.conf_groups import compose_group
from command.options import RAW_KEYS
from command.words import SWEEP
from components.errors import RecipeError

STUDY = "study="
MOST_POINTS = 10_000
THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
LONGEST = 200  # a file system takes 255
PASSING = ("action=", "again=", "force=", "at_most=", "output=")
GLOB = "GLOB_CHOICE_SWEEP"
LISTED = re.compile(r"[,(]")  # what no name of a recipe has
HERE = "local"
ONLY = "only"  # the point of a sweep that has one


def split_sweep(words: Sequence[str]) -> tuple[bool, list[list[str]]]:
    """Take ``-m`` away and list the points, the last key changing fastest.

    Raises:
        RecipeError: a word is no ``key=value``, or its values cannot be listed or are too many.
    """
    sweeping = SWEEP in words
    raw_keys = OWN_FILES if not sweeping and writes_recipe(words) else ()
    options = [
        [word] if word.partition("=")[0] in raw_keys else _values_of(word, sweeping)
        for word in words
        if word != SWEEP
    ]
    if prod(map(len, options)) > MOST_POINTS:
        longest = max(options, key=len)[0].partition("=")[0]
        problem = f"a sweep has {MOST_POINTS:,} points at most"
        raise RecipeError(longest, problem, "list fewer values, or let a study search")
    return sweeping, [list(point) for point in product(*options)]


def study_words(words: Sequence[str]) -> list[str] | None:
    """Return a study's words without ``-m``; nothing where no study is asked for.

    A plan without ``-m`` reads the runs of a ladder, beside a recipe of its own.

    Raises:
        RecipeError: a study without ``-m`` whose report is not asked for, or more than one.
    """
    named = sum(word.startswith(STUDY) for word in words)
    if not named or (SWEEP not in words and "action=plan" in words):
        return None
    # A study's report is one page, not many runs.
    if SWEEP not in words and "action=report" not in words:
        raise RecipeError("study", "a study is many runs", "write -m before it")
    if named > 1:
        raise RecipeError("study", "given twice", "keep one of them")
    return [word for word in words if word != SWEEP]


def submits(points: Sequence[Sequence[str]]) -> bool:
    """Return whether a sweep is for a scheduler: asked for, or by the nature of its clusters.

    Raises:
        RecipeError: some points are for a scheduler, and others are not.
    """
    given = [dict(word.partition("=")[::2] for word in words) for words in points]
    given_actions = {(one.get("action", "auto"), one.get("cluster", HERE)) for one in given}
    found = {
        one == "submit" or (one == "auto" and _queues(name)) for one, name in given_actions
    }
    if len(found) > 1:
        problem = "some points are for a scheduler, and others are not"
        raise RecipeError("cluster", problem, "write a command for each kind")
    return found.pop()


def _queues(cluster: str) -> bool:
    """Return whether a cluster has a scheduler; one that is not known has none."""
    if cluster not in groups()["cluster"]:
        return False
    return str(compose_group("cluster", cluster)["scheduler"]) != "none"


def trains(points: Sequence[Sequence[str]]) -> bool:
    """Return whether every point of a sweep begins a run here, if it is for no scheduler."""
    given = [dict(word.partition("=")[::2] for word in words) for words in points]
    actions = {one.get("action", "auto") for one in given}
    return actions <= {"auto", "train"} and not any("resume" in one for one in given)


def _values_of(word: str, sweeping: bool) -> list[str]:
    """List what a word stands for, a sweep of Hydra's grammar in the order of its writing."""
    key, _, text = word.partition("=")
    if _is_raw(key, text, sweeping) or not (override := parse_word(word)).is_sweep_override():
        return [word]
    kind, sweep = getattr(override.value_type, "name", ""), override.value()
    _check_listed(key, text, kind, shuffled=getattr(sweep, "shuffle", False))
    if not sweeping:
        one = f"; one number is written {key}={text.replace(',', '_')}"
        way = "a sweep over values needs -m" + (one if THOUSANDS.fullmatch(text) else "")
        raise RecipeError(key, f"several values in {word!r}", way)
    try:
        if kind == GLOB:
            found = list(sweep.filter(groups()[key]))  # type: ignore[union-attr]
        else:
            found = list(islice(override.sweep_string_iterator(), MOST_POINTS + 1))
    except ValueError as error:  # a step of nothing, a choice inside a choice
        problem = f"{text} cannot be listed: {str(error).splitlines()[0]}"
        raise RecipeError(key, problem, "write the values, separated by commas") from None
    if not found:
        raise RecipeError(key, f"{text} stands for no value", "write those that you mean")
    if twice := next((one for one, count in Counter(found).items() if count > 1), None):
        raise RecipeError(key, f"{text} lists {twice} twice", "keep one of them")
    return [f"{key}={value}" for value in found]


def _is_raw(key: str, text: str, sweeping: bool) -> bool:
    """Tell a path or a URL, taken as it stands, from what may be a list of values."""
    if key != "recipe":
        return key in RAW_KEYS
    return not sweeping and (text.endswith(".yaml") or not LISTED.search(text))


def _check_listed(key: str, text: str, kind: str, *, shuffled: bool) -> None:
    """Refuse what is no list of values, or is another one each time.

    Raises:
        RecipeError: it is an interval, is shuffled, or looks for files where there are none.
    """
    if kind == "INTERVAL_SWEEP":
        remedy = "a study searches it (docs/studies.md); here write values, or range(...)"
        raise RecipeError(key, f"{text} is no list of values", remedy)
    if shuffled:
        problem = f"{text}: the same command finds its folder again, so nothing is shuffled"
        raise RecipeError(key, problem, "leave shuffle out")
    if kind == GLOB and key not in groups():
        remedy = f"it chooses files of a group: {', '.join(groups())}"
        raise RecipeError(key, f"{text}, but the values of {key} are in no folder", remedy)


def labels(points: Sequence[Sequence[str]]) -> list[str]:
    """Name each point by the words that not all points have, as a folder can be called."""
    common = set.intersection(*(set(words) for words in points))
    named = [[word for word in words if word not in common] for words in points]
    folders = [as_folder(words) or ONLY for words in named]
    return [  # two words may be one to a folder
        f"{folder}-{_digest(','.join(words))}" if folders.count(folder) > 1 else folder
        for folder, words in zip(folders, named, strict=True)
    ]


def as_folder(words: Iterable[str]) -> str:
    """Join words to the name of a folder; one that is too long is cut and stays its own."""
    name = ",".join(words)
    plain = "".join(c if PLAIN.fullmatch(c) and c != "/" else "_" for c in name)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def folder_of_runs(arguments: Arguments, name: str, runs: Path = ROOT / "runs") -> Path:
    """Return the folder that ``run=`` names, else ``name`` in the user's folder of runs."""
    if arguments.run is not None:
        return arguments.run.absolute()
    user = read_user(arguments.choices.get("cluster", HERE), arguments.site)
    return Path(user.runs or runs).absolute() / name


def name_of(points: Sequence[Sequence[str]]) -> str:
    """Name a sweep: its recipe, and a digest that is the same for the same points."""
    kept = [[word for word in words if not word.startswith(PASSING)] for words in points]
    recipes = {word for words in points for word in words if word.startswith("recipe=")}
    alone = Path(recipes.pop().partition("=")[2]).stem + "-" if len(recipes) == 1 else ""
    return named_after(f"{alone}sweep", "\n".join(map(" ".join, kept)))


def named_after(stem: str, said: str) -> str:
    """Return a name that the same words give again."""
    return f"{stem}-{_digest(said)}"
