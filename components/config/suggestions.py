"""Ways out of a misspelt or foreign name: the key that is meant, found elsewhere, or alike."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from components.config.user_overrides import leaves

NAMES = Path(__file__).with_name("other_names.yaml")
LIKE = 0.65  # less is another word
ALIKE = 0.75  # a misspelling, and surely no key of that name elsewhere
MOST = 4  # places of one name that are worth reading
MANY = 20  # names that are too many to list if some are similar
DIGITS = re.compile(r"\d+")


class Meaning(NamedTuple):
    """A key of a recipe, or a word of the command, and what else has to be known of it."""

    here: str
    because: str = ""

    def __str__(self) -> str:
        return f"here it is {self.here}" + (f" ({self.because})" if self.because else "")


@cache
def other_names() -> Mapping[str, Meaning]:
    """Read what other programs call things."""
    rows = yaml.safe_load(NAMES.read_text("utf-8"))
    meant = {Meaning(row["here"], row.get("because", "")): row["for"] for row in rows}
    return {name: meaning for meaning, names in meant.items() for name in names}


def meaning_of(key: str) -> Meaning | None:
    """Look up a key by its last step, however it is written."""
    plain = key.lower().replace("-", "_")
    names = other_names()
    return names.get(plain) or names.get("" if "=" in plain else plain.rpartition(".")[2])


def nearest(word: str, known: Collection[str]) -> str:
    """Offer the known words that look like ``word``, or list all of them if none does.

    A word with other numbers, as another version or size, is not a misspelling.
    """
    close = difflib.get_close_matches(word, known, n=3, cutoff=LIKE)
    close = close or [name for name in sorted(known) if word and name.startswith(word)]
    numbers = set(DIGITS.findall(word))
    if meant := [name for name in close if numbers <= set(DIGITS.findall(name))]:
        return offered(meant)
    if close and len(known) > MANY:
        return f"similar names: {', '.join(close)}"
    return listed(known)


def respelt(word: str, known: Collection[str]) -> str:
    """Offer the known word with the same letters and digits, or list all.

    For names of things that exist, where a similar name is another thing.
    """
    same = [name for name in known if _letters(name) == _letters(word)]
    return offered(same) if same else listed(known)


def _letters(word: str) -> str:
    return "".join(filter(str.isalnum, word)).lower()


def listed(known: Collection[str]) -> str:
    """List the known words."""
    return "known: " + (", ".join(sorted(known)) or "none")


NUMBER = re.compile(r"(\d[\d_.,]*(?:e[+-]?\d+)?)\s*([kmbgt]?)", re.IGNORECASE)
TIMES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def written_number(given: object, *, whole: bool) -> int | float | None:
    """Read what was meant as a number, ``1M``, ``1,000`` or ``1e6``; nothing if it is none."""
    read = NUMBER.fullmatch(str(given)) if isinstance(given, str | float) else None
    if read is None:
        return None
    try:
        number = float(read[1].replace(",", "").replace("_", "")) * TIMES[read[2].lower()]
    except ValueError:  # 1.2.3
        return None
    if number.is_integer():
        return int(number)
    return None if whole else number


def misspelt(word: str, known: Collection[str]) -> str | None:
    """Return the word that this surely is, written otherwise."""
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=ALIKE)), None)


def offered(words: Iterable[str]) -> str:
    """Ask whether one of these was meant."""
    return "did you mean " + " or ".join(words) + "?"


def suggest(
    key: str, known: Collection[str], tree: Mapping[str, Any] | None = None, *, step: str = ""
) -> str:
    """Say what ``key`` is called here, where ``step`` of it is none of ``known``.

    By meaning first; then by spelling, if that is near; then as a key elsewhere in ``tree``.
    First of all a last step that is a section: ``trainer.precision``.
    """
    last = key.rpartition(".")[2]
    step = step or last
    section, dot, _ = key.partition(".")
    sections = {name for name, value in (tree or {}).items() if isinstance(value, Mapping)}
    if dot and (last in sections or (step == section and last in known)):
        return offered([last])
    alike = misspelt(step, known)
    meant = meaning_of(key) or (None if alike else meaning_of(step))
    if meant and not (alike and dot and meant.here.partition(".")[0] != section):
        return str(_in_tree(meant, tree or {}))
    found = [] if alike else places(key, tree or {})
    return offered(found) if found else nearest(step, known)


def _in_tree(meant: Meaning, tree: Mapping[str, Any]) -> Meaning:
    """Name the places that the key has in this tree, as a schedule of phases has several."""
    section, _, _ = meant.here.partition(".")
    if "." not in meant.here or meant.here in dict(leaves(tree)):
        return meant
    found = [one for one in places(meant.here, tree) if one.startswith(f"{section}.")]
    return meant._replace(here=" or ".join(found)) if found else meant


def places(key: str, tree: Mapping[str, Any]) -> list[str]:
    """List the few keys of ``tree`` that end as ``key`` does, else those with its last step."""
    paths = [path for path, _ in leaves(tree)]
    for end in (key, key.rpartition(".")[2]):
        found = [path for path in paths if path.endswith(f".{end}")]
        if 0 < len(found) <= MOST:
            return found
    return []


def divisors(number: int) -> list[int]:
    """List the divisors of ``number``."""
    return [n for n in range(1, number + 1) if number % n == 0]
