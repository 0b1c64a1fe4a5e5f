"""Sweeps (``-m``): the points of a command, their labels, and the folders of their runs."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

import yaml

from cluster.user import PLAIN, read_user
from command.arguments import RAW_KEYS, ROOT, Arguments, groups, parse_word, read_point
from components.errors import RecipeError

STUDY = "study="
MOST_POINTS = 10_000
REPORT = "action=report"  # of a study it is one page, not many runs
SWEEPS = frozenset({"-m", "--multirun"})


def split_sweep(words: Sequence[str]) -> tuple[bool, list[list[str]]]:
    """Take ``-m`` away and list the points, the last key changing fastest.

    Raises:
        RecipeError: a word is no ``key=value``, several values are given without ``-m``, or
            what they are cannot be listed.
    """
    sweeping = any(word in SWEEPS for word in words)
    words = [word for word in words if word not in SWEEPS]
    options = [_values_of(word, sweeping) for word in words]
    _check_count(options)
    return sweeping, [list(point) for point in product(*options)]


def study_words(words: Sequence[str]) -> list[str] | None:
    """Return a study's words without ``-m``; nothing where no study is asked for.

    Raises:
        RecipeError: a study without ``-m`` whose report is not asked for, or more than one.
    """
    named = [word for word in words if word.startswith(STUDY)]
    if not named:
        return None
    kept = [word for word in words if word not in SWEEPS]
    if len(kept) == len(words) and REPORT not in words:
        raise RecipeError("study", "a study is many runs", "write -m before it")
    if len(named) > 1:
        raise RecipeError("study", "given twice", "keep one of them")
    return kept


def submits(points: Sequence[Sequence[str]]) -> bool:
    """Tell whether a sweep is for a scheduler: asked for, or by the cluster's nature."""
    arguments = read_point(points[0])
    if arguments.action != "auto" or "cluster" not in arguments.choices:
        return arguments.action == "submit"
    profile = ROOT / "conf" / "cluster" / f"{arguments.choices['cluster']}.yaml"
    return str(yaml.safe_load(profile.read_text("utf-8"))["scheduler"]) != "none"


def _values_of(word: str, sweeping: bool) -> list[str]:
    key = word.partition("=")[0]
    if key in RAW_KEYS or (key == "recipe" and not sweeping):
        return [word]
    if not parse_word(word).is_sweep_override():
        return [word]
    if not sweeping:
        raise RecipeError(key, f"several values in {word!r}", "a sweep over values needs -m")
    return [f"{key}={value}" for value in _listed(word)]


def _listed(word: str) -> list[str]:
    """List what a sweep of Hydra's grammar stands for, in the order in which it is written.

    Raises:
        RecipeError: it stands for no list, an empty one, or one that is too long.
    """
    key, _, text = word.partition("=")
    override = parse_word(word)
    kind, sweep = getattr(override.value_type, "name", ""), override.value()
    if kind == "INTERVAL_SWEEP":
        remedy = "a study searches it (docs/studies.md); here write values, or range(...)"
        raise RecipeError(key, f"{text} is no list of values", remedy)
    if getattr(sweep, "shuffle", False):
        problem = f"{text}: the same command finds its folder again, so nothing is shuffled"
        raise RecipeError(key, problem, "leave shuffle out")
    try:
        found = (
            _globbed(key, text, sweep)
            if kind == "GLOB_CHOICE_SWEEP"
            else list(islice(override.sweep_string_iterator(), MOST_POINTS + 1))
        )
    except ValueError as error:  # a step of nothing, a choice inside a choice
        if isinstance(error, RecipeError):
            raise
        problem = f"{text} cannot be listed: {str(error).splitlines()[0]}"
        raise RecipeError(key, problem, "write the values, separated by commas") from None
    if not found:
        raise RecipeError(key, f"{text} stands for no value", "write those that you mean")
    return found


def _globbed(key: str, text: str, sweep: Any) -> list[str]:
    """Choose among the files of a group."""
    if key not in groups():
        remedy = f"it chooses files of a group: {', '.join(groups())}"
        raise RecipeError(key, f"{text}, but the values of {key} are in no folder", remedy)
    return list(sweep.filter(groups()[key]))


def _check_count(options: Sequence[Sequence[str]]) -> None:
    """Refuse what nobody would wait for.

    Raises:
        RecipeError: the points are too many.
    """
    if prod(map(len, options)) > MOST_POINTS:
        longest = max(options, key=len)[0].partition("=")[0]
        problem = f"a sweep has {MOST_POINTS:,} points at most"
        raise RecipeError(longest, problem, "list fewer values, or let a study search")


LONGEST = 200  # a file system takes 255


def labels(points: Sequence[Sequence[str]]) -> list[str]:
    """Name each point by the words that not all points have, as a folder can be called."""
    common = set.intersection(*(set(words) for words in points))
    return [as_folder(word for word in words if word not in common) for words in points]


def as_folder(words: Iterable[str]) -> str:
    """Join words to the name of a folder; one that is too long is cut and stays its own."""
    name = ",".join(words)
    plain = "".join(c if PLAIN.fullmatch(c) and c != "/" else "_" for c in name)
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def folder_of_runs(arguments: Arguments, stem: str, said: str) -> Path:
    """Return the folder that ``run=`` names, or one that the same words find again."""
    named = arguments.folders.get("run")
    if named is not None:
        return named.absolute()
    user = read_user(arguments.choices.get("cluster", "local"), arguments.site)
    digest = hashlib.sha256(said.encode()).hexdigest()[:8]
    return Path(user.runs or ROOT / "runs").absolute() / f"{stem}-{digest}"
