"""The machine that a stage is for: its Python, its wheels, and what its modules bring."""

import re
import sys
from dataclasses import dataclass

from cluster.user import User
from components.errors import RecipeError
from components.spec.recipe import Recipe
from components.versions import PYTHON, judge

VERSION = re.compile(r"3\.\d{1,2}")
# Wheels for glibc up to 2.28, which torch itself asks for: an older one runs none.
GLIBC_MINORS = range(28, 4, -1)
OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
ARCHITECTURE = "x86_64"


@dataclass(frozen=True, kw_only=True)
class Target:
    """``python`` as ``3.12``; ``provided`` are packages that modules bring, never staged."""

    cluster: str
    python: str
    provided: tuple[str, ...]

    @property
    def pip_options(self) -> tuple[str, ...]:
        """Say to ``pip download`` for which machine, whatever this one is."""
        names = [f"manylinux_2_{minor}" for minor in GLIBC_MINORS] + list(OLD_NAMES)
        platforms = (f"--platform={name}_{ARCHITECTURE}" for name in names)
        return ("--implementation=cp", f"--python-version={self.python}", *platforms)


def target_of(recipe: Recipe, user: User) -> Target:
    """Read the target from the user, else the site's profile, else this machine.

    Raises:
        RecipeError: the version is none, or older than what this project runs on.
    """
    site = recipe.cluster.site
    profile = None if isinstance(site, str) else site.python
    here = "{}.{}".format(*sys.version_info[:2])
    python = user.python or profile or here
    if not VERSION.fullmatch(python) or judge(python, PYTHON) == "below":
        oldest = "{}.{}".format(*PYTHON.first)
        problem = f"{python!r} is not a version of Python from {oldest} on"
        raise RecipeError("site.python", problem, f'write site.python="{here}"')
    provided = () if isinstance(site, str) else site.provides
    return Target(cluster=recipe.cluster.name, python=python, provided=provided)
