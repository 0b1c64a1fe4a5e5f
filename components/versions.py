"""The range of torch and of Python that this program was tried with: nowhere else is it said.

Read before anything else is imported, by whatever Python starts the program, so it keeps to
what Python 3.6 can read. `docs/versions.md` says what was tried of each release.

    python -m components.versions    says what lies below the range, with exit status 2
"""

import platform
import sys
from contextlib import suppress
from typing import NamedTuple, Tuple  # noqa: UP035 - Python 3.6 has no others

Release = Tuple[int, int]  # noqa: UP006 (older Pythons read it)


class Range(NamedTuple):
    """The first and the last tried release of ``name``, each a major and a minor number."""

    name: str
    first: Release
    last: Release

    def __str__(self) -> str:
        return "{} {}.{} to {}.{}".format(self.name, *self.first, *self.last)


PYTHON = Range("Python", (3, 11), (3, 13))
TORCH = Range("torch", (2, 10), (2, 15))
# What `make versions` tries; a run that begins under the locked one goes on under the others.
TORCH_RELEASES = ("2.10.0", "2.11.0", "2.13.0", "2.15.0")
LOCKED = "2.13.0"
REMEDY = "use one of these; make setup builds .venv, with the locked torch"


def release_of(version: str) -> Release:
    """Read ``2.10.0a0+git449b176`` as (2, 10): a site's build counts as its release."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def judge(version: str, tried: Range) -> str:
    """Say ``below`` or ``above`` of what lies outside of a range, ``tried`` of all else."""
    release = release_of(version)
    if release < tried.first:
        return "below"
    return "above" if release > tried.last else "tried"


def installed() -> "dict[Range, str]":
    """Give which Python this is, and which torch is installed if one is; none is imported."""
    found = {PYTHON: platform.python_version()}
    if judge(found[PYTHON], PYTHON) != "below":
        from importlib.metadata import PackageNotFoundError, version

        with suppress(PackageNotFoundError):
            found[TORCH] = version("torch")
    return found


def outside(side: str) -> "list[str]":
    """Describe what of this environment lies ``below`` or ``above`` the range, a line each."""
    return [
        f"{tried.name} {version} is installed here; tried were {tried}"
        for tried, version in installed().items()
        if judge(version, tried) == side
    ]


def refuse() -> None:
    """End the program with one message and status 2 where something lies below the range."""
    for line in outside("below"):
        sys.stderr.write(f"{line}\n  {REMEDY}\n")
        sys.exit(2)


if __name__ == "__main__":
    refuse()
