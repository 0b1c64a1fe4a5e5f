"""From the words of one command to the points of a sweep, and who runs them."""

from collections.abc import Iterator, Sequence
from itertools import product

import yaml

from command.arguments import RAW_KEYS, ROOT, parse_word, read_point
from components.errors import RecipeError

STUDY = "study="
REPORT = "action=report"  # of a study it is one page, not many runs
SWEEPS = frozenset({"-m", "--multirun"})


def split_sweep(words: Sequence[str]) -> tuple[bool, list[list[str]]]:
    """Take ``-m`` away and list the points, the last key changing fastest.

    Raises:
        RecipeError: a word is no ``key=value``, or several values are given without ``-m``.
    """
    sweeping = any(word in SWEEPS for word in words)
    words = [word for word in words if word not in SWEEPS]
    options = [list(_values_of(word, sweeping)) for word in words]
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


def _values_of(word: str, sweeping: bool) -> Iterator[str]:
    key = word.partition("=")[0]
    if key in RAW_KEYS or (key == "recipe" and not sweeping):
        yield word
        return
    override = parse_word(word)
    if not override.is_sweep_override():
        yield word
    elif not sweeping:
        raise RecipeError(key, f"several values in {word!r}", "a sweep over values needs -m")
    else:
        yield from (f"{key}={value}" for value in override.sweep_string_iterator())
