"""Staging folder and the machine that it is for.

Its ``SHA256SUMS`` is written for ``sha256sum --check``, which is everywhere.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster.user import User
from components.config.schema.recipe import Recipe
from components.data.files import FileRecord, record_file, replace_atomically
from components.errors import RecipeError
from components.versions import PYTHON, judge

RECORD, SUMS = "stage.json", "SHA256SUMS"
MARK = ".stage"  # in a folder that was begun
VERSION = re.compile(r"3\.\d{1,2}")
# Wheels for glibc up to 2.28, which torch itself asks for: an older one runs none.
GLIBC_MINORS = range(28, 4, -1)
OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
ARCHITECTURE = "x86_64"


@dataclass(frozen=True, kw_only=True)
class Target:
    """``python`` as ``3.12``; ``provided`` are packages that modules bring, never staged."""

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
    return Target(python=python, provided=provided)


def open_stage(folder: Path) -> None:
    """Make the folder, or go on with one; its record is gone until it is whole again.

    Raises:
        RecipeError: something else is there, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted(one.name for one in folder.iterdir())
        if others and MARK not in others:
            problem = f"{folder} holds {others[0]} and is no stage"
            raise RecipeError("file", problem, "name an empty or a new folder")
        (folder / MARK).touch()
        for record in (RECORD, SUMS):
            (folder / record).unlink(missing_ok=True)
    except OSError as error:
        raise RecipeError("file", f"cannot write {folder}: {error}", "name another") from None


def copy_tree(source: Path, target: Path) -> None:
    """Copy what ``target`` does not have yet; on one file system nothing is written twice."""
    for file in sorted(source.rglob("*")):
        place = target / file.relative_to(source)
        if file.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif not place.exists() or place.stat().st_size != file.stat().st_size:
            place.parent.mkdir(parents=True, exist_ok=True)
            partial = place.with_name(f".{place.name}.partial")
            partial.unlink(missing_ok=True)
            try:
                os.link(file, partial)
            except OSError:  # another file system
                shutil.copyfile(file, partial)
            partial.replace(place)


def close_stage(folder: Path, facts: Mapping[str, Any]) -> list[FileRecord]:
    """Hash every file and write both records."""
    files = sorted(
        one
        for one in folder.rglob("*")
        if one.is_file() and not one.relative_to(folder).parts[0].startswith(".")
    )
    records = [
        replace(record_file(one), name=one.relative_to(folder).as_posix()) for one in files
    ]
    sums = "".join(f"{one.sha256}  {one.name}\n" for one in records)
    with replace_atomically(folder / SUMS) as stream:
        stream.write(sums.encode())
    tree = {**facts, "files": [asdict(one) for one in records]}
    with replace_atomically(folder / RECORD) as stream:
        stream.write((json.dumps(tree, indent=1) + "\n").encode())
    return records
