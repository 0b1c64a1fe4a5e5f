"""Sweeps (``-m``): the points of a command, and the names of their folders."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, product
from math import prod
from pathlib import Path

from cluster.user import PLAIN, read_user
from command.arguments import (
    OWN_FILES,
    ROOT,
    Arguments,
    list_config_groups,
    parse_word,
    writes_recipe,
)
from command.composition.conf_groups import compose_group
from command.options import RAW_KEYS
from command.words import SWEEP
from components.errors import RecipeError

STUDY = "study="
MOST_POINTS = 10_000
THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
LONGEST = 200  # file systems allow 255
PASSING = ("action=", "again=", "force=", "at_most=", "output=")
GLOB = "GLOB_CHOICE_SWEEP"
LISTED = re.compile(r"[,(]")  # signs that no recipe name contains
HERE = "local"
ONLY = "only"  # the folder name of a single point


def split_sweep(words: Sequence[str]) -> tuple[bool, list[list[str]]]:
    """Remove ``-m`` and list the points. The last key changes fastest."""
    sweeping = SWEEP in words
    raw_keys = OWN_FILES if not sweeping and writes_recipe(words) else ()
    options = [
        [word] if word.partition("=")[0] in raw_keys else _values_of(word, sweeping)
        for word in words
        if word != SWEEP
    ]
    if prod(map(len, options)) > MOST_POINTS:
        longest = max(options, key=len)[0].partition("=")[0]
        problem = f"a sweep can have at most {MOST_POINTS:,} points"
        raise RecipeError(longest, problem, "list fewer values, or use a study that searches")
    return sweeping, [list(point) for point in product(*options)]


def is_submitted(points: Sequence[Sequence[str]]) -> bool:
    """Return whether a sweep is submitted; RecipeError if only part of it has a scheduler."""
    settings = [dict(word.partition("=")[::2] for word in words) for words in points]
    given_actions = {
        (setting.get("action", "auto"), setting.get("cluster", HERE)) for setting in settings
    }
    kinds = {
        action == "submit" or (action == "auto" and _queues(name))
        for action, name in given_actions
    }
    if len(kinds) > 1:
        problem = "some points need a scheduler, and others do not"
        raise RecipeError("cluster", problem, "use a separate command for each kind")
    return kinds.pop()


def _queues(cluster: str) -> bool:
    """Return whether a cluster has a scheduler; False for an unknown cluster."""
    if cluster not in list_config_groups()["cluster"]:
        return False
    return str(compose_group("cluster", cluster)["scheduler"]) != "none"


def is_study(points: Sequence[Sequence[str]]) -> bool:
    """Return whether every point of a sweep starts a run, or the runs get one page."""
    settings = [dict(word.partition("=")[::2] for word in words) for words in points]
    actions = {setting.get("action", "auto") for setting in settings}
    return actions <= {"auto", "train", "report"} and not any(
        "resume" in setting for setting in settings
    )


def _values_of(word: str, sweeping: bool) -> list[str]:
    """List the ``key=value`` words of a word; Hydra's sweeps keep their order."""
    key, _, text = word.partition("=")
    if _is_raw(key, text, sweeping) or not (override := parse_word(word)).is_sweep_override():
        return [word]
    kind, sweep = getattr(override.value_type, "name", ""), override.value()
    _check_listed(key, text, kind, shuffled=getattr(sweep, "shuffle", False))
    if not sweeping:
        hint = f"; write one number as {key}={text.replace(',', '_')}"
        advice = "add -m to sweep over values" + (hint if THOUSANDS.fullmatch(text) else "")
        raise RecipeError(key, f"several values in {word!r}", advice)
    try:
        if kind == GLOB:
            values = list(sweep.filter(list_config_groups()[key]))  # type: ignore[union-attr]  # GLOB is a glob
        else:
            values = list(islice(override.sweep_string_iterator(), MOST_POINTS + 1))
    except ValueError as error:  # a step of 0, or a choice inside a choice
        problem = f"{text} cannot be listed: {str(error).splitlines()[0]}"
        raise RecipeError(key, problem, "write the values, separated by commas") from None
    if not values:
        raise RecipeError(key, f"{text} has no values", "write the values")
    if twice := next((item for item, count in Counter(values).items() if count > 1), None):
        raise RecipeError(key, f"{text} lists {twice} twice", "keep one of them")
    return [f"{key}={value}" for value in values]


def _is_raw(key: str, text: str, sweeping: bool) -> bool:
    """Return whether a text is a path or URL, kept as it is, not a list of values."""
    if key != "recipe":
        return key in RAW_KEYS
    return not sweeping and (text.endswith(".yaml") or not LISTED.search(text))


def _check_listed(key: str, text: str, kind: str, *, shuffled: bool) -> None:
    """Refuse intervals, shuffled lists, and globs for keys without option files."""
    if kind == "INTERVAL_SWEEP":
        remedy = "write values or range(...); a study can search it (docs/studies.md)"
        raise RecipeError(key, f"{text} is not a list of values", remedy)
    if shuffled:
        problem = f"{text}: a repeated command needs the same order of points"
        raise RecipeError(key, problem, "remove shuffle")
    if kind == GLOB and key not in list_config_groups():
        remedy = f"use glob with a group: {', '.join(list_config_groups())}"
        raise RecipeError(key, f"{text} requires a group, but {key} is not a group", remedy)


def label_points(points: Sequence[Sequence[str]]) -> list[str]:
    """Return a folder name for each point, from the words that the points do not share."""
    common = set.intersection(*(set(words) for words in points))
    named = [[word for word in words if word not in common] for words in points]
    folders = [as_folder(words) or ONLY for words in named]
    return [  # two words may give the same folder name
        f"{folder}-{_digest(','.join(words))}" if folders.count(folder) > 1 else folder
        for folder, words in zip(folders, named, strict=True)
    ]


def as_folder(words: Iterable[str]) -> str:
    """Join words to a folder name. A long name is cut, with a digest to keep it unique."""
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
    """Name a sweep by its recipe and a digest of its points."""
    relevant = [[word for word in words if not word.startswith(PASSING)] for words in points]
    recipes = {word for words in points for word in words if word.startswith("recipe=")}
    alone = Path(recipes.pop().partition("=")[2]).stem + "-" if len(recipes) == 1 else ""
    return named_after(f"{alone}sweep", "\n".join(map(" ".join, relevant)))


def named_after(stem: str, text: str) -> str:
    """Return a name that is the same for the same words."""
    return f"{stem}-{_digest(text)}"
