"""The part of a lock that holds for another Python: pip itself asks the one that it runs on."""

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

BEGINNING = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)


def pins_for(lock: Path, python: str) -> list[str]:
    """Return the entries of a lock, hashes included, whose markers ``python`` (3.12) meets.

    All other markers are those of this machine: Linux for Linux.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    kept = []
    for entry in _entries(lock):
        words, _, hashes = entry.partition("\\")
        requirement = Requirement(words.strip())
        if requirement.marker is None or requirement.marker.evaluate(environment):
            kept.append(f"{requirement.name}{requirement.specifier} \\{hashes}")
    return kept


def without_hashes(pins: list[str]) -> str:
    """Return the same as constraints, a line each."""
    return "".join(f"{pin.partition(' ')[0]}\n" for pin in pins)


def _entries(lock: Path) -> Iterator[str]:
    for entry in BEGINNING.split(lock.read_text("utf-8")):
        if entry[:1].isalnum():
            yield entry
