"""Staging folder: this code, pinned wheels, data, and what installs them on the site.

What pip has fetched already it does not fetch again, so an interrupted call goes on.
``SHA256SUMS`` is written for ``sha256sum --check``, which is everywhere.
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster.script import fill
from cluster.user import User
from components.child_process import python_environment
from components.config.recipe import Recipe
from components.data.files import FileRecord, record_file, replace_atomically
from components.errors import RecipeError
from components.preflight.node_checks import read_lock
from components.versions import PYTHON, judge

RECORD, SUMS = "stage.json", "SHA256SUMS"
MARK = ".stage"  # in a folder that was begun
FOLDER, PINS, CONSTRAINTS = "wheels", "packages.lock", "constraints.txt"
BUNDLE, INSTALLER = "repository.bundle", "install.sh"
VERSION = re.compile(r"3\.\d{1,2}")
# Wheels for glibc up to 2.28, which torch itself asks for: an older one runs none.
GLIBC_MINORS = range(28, 4, -1)
OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1", "linux")


@dataclass(frozen=True, kw_only=True)
class Target:
    """``python`` as ``3.12``; ``provided`` are packages that modules bring, never staged.

    ``architecture`` is that of its processors, as ``uname -m`` and wheels have it.
    """

    python: str
    provided: tuple[str, ...]
    architecture: str

    @property
    def pip_options(self) -> tuple[str, ...]:
        """Say to ``pip download`` for which machine, whatever this one is."""
        names = [f"manylinux_2_{minor}" for minor in GLIBC_MINORS] + list(OLD_NAMES)
        platforms = (f"--platform={name}_{self.architecture}" for name in names)
        return ("--implementation=cp", f"--python-version={self.python}", *platforms)


def target_of(recipe: Recipe, user: User) -> Target:
    """Read the target from the user, else the site's profile, else this machine.

    Raises:
        RecipeError: the version is none, or older than what this project runs on.
    """
    site = recipe.cluster.site
    profile, architecture = None, platform.machine()
    provided: tuple[str, ...] = ()
    if not isinstance(site, str):
        profile, provided, architecture = site.python, site.provides, site.architecture
    here = "{}.{}".format(*sys.version_info[:2])
    python = user.python or profile or here
    if not VERSION.fullmatch(python) or judge(python, PYTHON) == "below":
        oldest = "{}.{}".format(*PYTHON.first)
        problem = f"{python!r} is not a version of Python from {oldest} on"
        raise RecipeError("site.python", problem, f'write site.python="{here}"')
    return Target(python=python, provided=provided, architecture=architecture)


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


def pins_for(lock: Path, python: str) -> list[str]:
    """Return the entries of a lock, hashes included, whose markers ``python`` (3.12) meets."""
    found = read_lock(lock, python)
    return [f"{pin.name}{pin.specifier} \\{hashes}" for pin, hashes in found]


def without_hashes(pins: list[str]) -> str:
    """Return the pins as constraints, a line each."""
    return "".join(f"{pin.partition(' ')[0]}\n" for pin in pins)


def fetch_packages(
    requirements: Path, locks: Sequence[str], target: Target, folder: Path
) -> list[Path]:
    """Put a wheel of each package into ``folder/wheels`` and return them, sorted.

    Each is held against the hash in its lock by pip. Where the index has no wheel, the source
    is built here, if that gives a wheel for any machine.

    Raises:
        RecipeError: the index cannot be reached, lacks a package for the target, or one has to
            be compiled on the target itself.
    """
    wheels = folder / FOLDER
    wheels.mkdir(parents=True, exist_ok=True)
    pins = [pin for lock in locks for pin in pins_for(requirements / lock, target.python)]
    for name, text in ((PINS, "".join(pins)), (CONSTRAINTS, without_hashes(pins))):
        (folder / name).write_text(text, "utf-8")
    into = ("--dest", str(wheels), *target.pip_options)
    own = ("--no-deps", "--no-build-isolation", "--require-hashes")
    _pip("download", *own, "--requirement", str(folder / PINS), *into)
    if "torch" not in target.provided:
        # Its own wheel says what it needs beside the lock, by its device.
        wanted = ("--requirement", str(requirements / "torch.txt"), "--only-binary=:all:")
        pinned = ("--constraint", str(folder / CONSTRAINTS), "--find-links", str(wheels))
        _pip("download", *wanted, *pinned, *into)
    for source in sorted(wheels.glob("*.tar.gz")):
        _build(source)
    return sorted(wheels.glob("*.whl"))


def _build(source: Path) -> None:
    """Turn a source into a wheel for any machine, and keep that alone."""
    wheels = source.parent
    before = set(wheels.glob("*.whl"))
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir")
    _pip("wheel", *options, str(wheels), str(source))
    for wheel in set(wheels.glob("*.whl")) - before:
        if wheel.name.endswith("-none-any.whl"):
            continue
        wheel.unlink()
        raise RecipeError(
            f"requirements: {source.name}",
            f"there is no wheel, and what is built here ({wheel.name}) is for this machine",
            "let the target's modules bring it: name it in cluster.site.provides",
        )
    source.unlink()


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(
        command, env=python_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        raise RecipeError(
            "requirements",
            f"pip {words[0]}: {(said or [done.stderr.strip()])[-1].removeprefix('ERROR: ')}",
            "stage on a machine with internet; pip's own settings (PIP_INDEX_URL, "
            "PIP_EXTRA_INDEX_URL) say where it looks; give the same command again to go on",
        )


def bundle_code(repository: Path, folder: Path) -> str:
    """Write ``folder/repository.bundle`` and return the commit that it holds.

    Raises:
        RecipeError: git has no commit here, or files differ from it.
    """
    commit = _git(repository, "rev-parse", "HEAD").strip()
    if changed := _git(repository, "status", "--porcelain").splitlines():
        raise RecipeError(
            "repository",
            f"{len(changed)} files differ from the commit, {changed[0][3:]} for one, and would "
            "not be staged",
            "commit them, or stage from a clean clone",
        )
    partial = folder / f".{BUNDLE}"
    _git(repository, "bundle", "create", "--quiet", str(partial.absolute()), "HEAD")
    partial.replace(folder / BUNDLE)
    return commit


def _git(repository: Path, *words: str) -> str:
    command = ["git", "-C", str(repository), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise RecipeError(
            "repository",
            f"git {words[0]} in {repository}: {said.strip()}",
            "stage from a clone that git made",
        ) from None
    return done.stdout


def write_installer(
    folder: Path,
    recipe: Recipe,
    target: Target,
    *,
    commit: str,
    image: str | None,
    words: tuple[str, ...],
) -> None:
    """Write ``folder/install.sh``; ``words`` are those of the command that comes next."""
    site = None if isinstance(recipe.cluster.site, str) else recipe.cluster.site
    systems = site.file_systems.values() if site else ()
    code = next((system for system in systems if "code" in system.purpose), None)
    limits = f" ({code.limits})" if code and code.limits else ""
    settings = {
        "name": recipe.name,
        "cluster": recipe.cluster.name,
        "where": f"FOLDER is best below {code.path}{limits}" if code else "",
        "modules": site.modules if site else (),
        "setup": site.setup if site else (),
        "python": target.python,
        "architecture": target.architecture,
        "provided": target.provided,
        "commit": commit,
        "image": image,
        "words": shlex.join(words),
    }
    script = folder / INSTALLER
    script.write_text(fill("install.sh.j2", settings), "utf-8")
    script.chmod(0o755)


def close_stage(folder: Path, facts: Mapping[str, Any]) -> list[FileRecord]:
    """Hash every file and write both records."""
    records = [
        replace(record_file(file), name=file.relative_to(folder).as_posix())
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.relative_to(folder).parts[0].startswith(".")
    ]
    sums = "".join(f"{one.sha256}  {one.name}\n" for one in records)
    tree = {**facts, "files": [asdict(one) for one in records]}
    for name, text in ((SUMS, sums), (RECORD, json.dumps(tree, indent=1) + "\n")):
        with replace_atomically(folder / name) as stream:
            stream.write(text.encode())
    return records
