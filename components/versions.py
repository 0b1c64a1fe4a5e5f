"""Supported versions of torch and Python: the ranges that this program was tested with.

``python -m components.versions`` exits with status 2 if a version is below its range. Any
Python imports this module first: it is in Python 3.6 syntax. Tests: `docs/versions.md`.
"""

import platform
import sys
from contextlib import suppress
from typing import NamedTuple, Tuple  # noqa: UP035 - Python 3.6 has no tuple[...]

Release = Tuple[int, int]  # noqa: UP006 (for older Pythons)


class Range(NamedTuple):
    """The first and last tested releases of ``name``, each a major and a minor number."""

    name: str
    first: Release
    last: Release

    def __str__(self) -> str:
        return "{} {}.{} to {}.{}".format(self.name, *self.first, *self.last)


PYTHON = Range("Python", (3, 11), (3, 13))
TORCH = Range("torch", (2, 10), (2, 15))
# `make versions` tests these: a run that starts with the locked one resumes with the others.
TORCH_RELEASES = ("2.10.0", "2.11.0", "2.13.0", "2.15.0")
LOCKED = "2.13.0"
REMEDY = "use a tested version; make setup builds .venv with the locked torch"


def release_of(version: str) -> Release:
    """Return (2, 10) for ``2.10.0a0+git449b176``: a site's build counts as its release."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def compare_version(version: str, tried: Range) -> str:
    """Return ``below``, ``above`` or ``tried`` for a version relative to a range."""
    release = release_of(version)
    if release < tried.first:
        return "below"
    return "above" if release > tried.last else "tried"


def read_installed_versions() -> "dict[Range, str]":
    """Return the versions of Python and of torch, if installed, without importing torch."""
    releases = {PYTHON: platform.python_version()}
    if compare_version(releases[PYTHON], PYTHON) != "below":
        from importlib.metadata import PackageNotFoundError, version

        with suppress(PackageNotFoundError):
            releases[TORCH] = version("torch")
    return releases


def list_outside_range(side: str) -> "list[str]":
    """Return one line for each installed version ``below`` or ``above`` its range."""
    return [
        f"{tried.name} {version} is installed; tested versions: {tried}"
        for tried, version in read_installed_versions().items()
        if compare_version(version, tried) == side
    ]


def refuse_old_versions() -> None:
    """Exit with a message and status 2 if a version is below its range."""
    for line in list_outside_range("below"):
        sys.stderr.write(f"{line}\n  {REMEDY}\n")
        sys.exit(2)


if __name__ == "__main__":
    refuse_old_versions()
