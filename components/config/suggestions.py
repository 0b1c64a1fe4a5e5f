"""Suggestions for a misspelled or foreign key: by meaning, by place, or by spelling."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from components.config.user_overrides import iterate_leaves

NAMES = Path(__file__).with_name("other_names.yaml")
LIKE = 0.65  # similarity of a suggested word; less is another word
ALIKE = 0.75  # similarity of a misspelling, without a search for the name elsewhere
MOST = 4  # places of a name that an error lists
MANY = 20  # more names are not all listed if some are similar
DIGITS = re.compile(r"\d+")


class Meaning(NamedTuple):
    """Recipe key or command word for a foreign name, with an explanation."""

    here: str
    because: str = ""

    def __str__(self) -> str:
        return f"use {self.here}" + (f" ({self.because})" if self.because else "")


@cache
def other_names() -> Mapping[str, Meaning]:
    """Return the meanings of names that other programs use."""
    rows = yaml.safe_load(NAMES.read_text("utf-8"))
    meant = {Meaning(row["here"], row.get("because", "")): row["for"] for row in rows}
    return {name: meaning for meaning, names in meant.items() for name in names}


def meaning_of(key: str) -> Meaning | None:
    """Return the meaning of a foreign key by its last step; ignores case, ``-`` and ``_``."""
    plain = key.lower().replace("-", "_")
    names = other_names()
    return names.get(plain) or names.get("" if "=" in plain else plain.rpartition(".")[2])


def suggest_similar(word: str, known: Collection[str]) -> str:
    """Return a fix with the known words similar to ``word``, or all known words.

    A word with other numbers, such as another version or size, is not a misspelling.
    """
    close = difflib.get_close_matches(word, known, n=3, cutoff=LIKE)
    close = close or [name for name in sorted(known) if word and name.startswith(word)]
    numbers = set(DIGITS.findall(word))
    if meant := [name for name in close if numbers <= set(DIGITS.findall(name))]:
        return suggest_words(meant)
    if close and len(known) > MANY:
        return f"similar names: {', '.join(close)}"
    return list_known(known)


def suggest_respelling(word: str, known: Collection[str]) -> str:
    """Return a fix with the known words of the same letters and digits, or all known words.

    For names of existing objects, where a similar name means another object.
    """
    same = [name for name in known if _letters(name) == _letters(word)]
    return suggest_words(same) if same else list_known(known)


def _letters(word: str) -> str:
    return "".join(filter(str.isalnum, word)).lower()


def list_known(known: Collection[str]) -> str:
    """Return a fix that lists the known words."""
    return "known: " + (", ".join(sorted(known)) or "none")


NUMBER = re.compile(r"(\d[\d_.,]*(?:e[+-]?\d+)?)\s*([kmbgt]?)", re.IGNORECASE)
TIMES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def written_number(given: object, *, whole: bool) -> int | float | None:
    """Parse a number such as ``1M``, ``1,000`` or ``1e6``; return None if it is none."""
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


def find_misspelled(word: str, known: Collection[str]) -> str | None:
    """Return the known word that ``word`` misspells, if any."""
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=ALIKE)), None)


def suggest_words(words: Iterable[str]) -> str:
    """Return a fix that suggests one of the words."""
    return "did you mean " + " or ".join(words) + "?"


def suggest_key(
    key: str, known: Collection[str], tree: Mapping[str, Any] | None = None, *, step: str = ""
) -> str:
    """Return a fix for an unknown ``key``, whose ``step`` is not in ``known``.

    The order is: a last step that is a section (``trainer.precision``), meaning, close
    spelling, a key elsewhere in ``tree``.
    """
    last = key.rpartition(".")[2]
    step = step or last
    section, dot, _ = key.partition(".")
    sections = {name for name, value in (tree or {}).items() if isinstance(value, Mapping)}
    if dot and (last in sections or (step == section and last in known)):
        return suggest_words([last])
    alike = find_misspelled(step, known)
    meant = meaning_of(key) or (None if alike else meaning_of(step))
    if meant and not (alike and dot and meant.here.partition(".")[0] != section):
        return str(_in_tree(meant, tree or {}))
    elsewhere = [] if alike else find_keys(key, tree or {})
    return suggest_words(elsewhere) if elsewhere else suggest_similar(step, known)


def _in_tree(meant: Meaning, tree: Mapping[str, Any]) -> Meaning:
    """Return the meaning with the key's places in this tree; a schedule may have several."""
    section, _, _ = meant.here.partition(".")
    if "." not in meant.here or meant.here in dict(iterate_leaves(tree)):
        return meant
    paths = [path for path in find_keys(meant.here, tree) if path.startswith(f"{section}.")]
    return meant._replace(here=" or ".join(paths)) if paths else meant


def find_keys(key: str, tree: Mapping[str, Any]) -> list[str]:
    """Return the keys of ``tree`` that end with ``key``, else with its last step, if few."""
    paths = [path for path, _ in iterate_leaves(tree)]
    for end in (key, key.rpartition(".")[2]):
        matches = [path for path in paths if path.endswith(f".{end}")]
        if 0 < len(matches) <= MOST:
            return matches
    return []


def list_divisors(number: int) -> list[int]:
    """Return the divisors of ``number``."""
    return [n for n in range(1, number + 1) if number % n == 0]
