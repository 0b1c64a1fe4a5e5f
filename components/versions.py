"""The range of torch and of Python that this program was tried with: nowhere else is it said.

Read before anything else is imported, by whatever Python starts the program, so it keeps to
what Python 3.6 can read. `docs/versions.md` says what was tried of each release.
"""

from typing import NamedTuple, Tuple  # noqa: UP035 - Python 3.6 has no other

Release = Tuple[int, int]  # noqa: UP006


class Range(NamedTuple):
    """The first and the last tried release of ``name``, each a major and a minor number."""

    name: str
    first: Release
    last: Release

    def __str__(self) -> str:
        return "{} {}.{} to {}.{}".format(self.name, *self.first, *self.last)


PYTHON = Range("Python", (3, 11), (3, 13))
TORCH = Range("torch", (2, 10), (2, 15))
# The releases that `make versions` tries, by their own Python and by others.
TORCH_RELEASES = ("2.10.0", "2.11.0", "2.13.0", "2.15.0")
LOCKED = "2.13.0"


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
