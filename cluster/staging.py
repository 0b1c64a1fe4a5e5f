"""Staging folder: this code, pinned wheels, data, and a script that installs them on the site.

pip does not download a file twice, so an interrupted call can be repeated. ``SHA256SUMS`` is
for ``sha256sum --check``, which every site has.
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

from cluster.script import fill_template
from cluster.user import User
from components.child_process import python_environment
from components.config.recipe import Recipe
from components.data.files import FileRecord, record_file, replace_atomically
from components.errors import RecipeError
from components.preflight.node_checks import read_lock
from components.versions import PYTHON, compare_version

RECORD, SUMS = "stage.json", "SHA256SUMS"
MARK = ".stage"  # marks a staging folder
FOLDER, PINS, CONSTRAINTS = "wheels", "packages.lock", "constraints.txt"
BUNDLE, INSTALLER = "repository.bundle", "install.sh"
VERSION = re.compile(r"3\.\d{1,2}")
# Wheels for glibc up to 2.28, the minimum of torch's own wheels.
GLIBC_MINORS = range(28, 4, -1)
OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1", "linux")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Machine to stage for: ``python`` such as ``3.12``, and its packages and architecture.

    ``provided`` packages come from the site's modules and are never staged. ``architecture``
    has the form of ``uname -m`` and wheel names.
    """

    python: str
    provided: tuple[str, ...]
    architecture: str

    @property
    def pip_options(self) -> tuple[str, ...]:
        """Options of ``pip download`` for the target machine."""
        names = [f"manylinux_2_{minor}" for minor in GLIBC_MINORS] + list(OLD_NAMES)
        platforms = (f"--platform={name}_{self.architecture}" for name in names)
        return ("--implementation=cp", f"--python-version={self.python}", *platforms)


def target_of(recipe: Recipe, user: User) -> Target:
    """Return the target from the user's settings, the site's profile, or this machine."""
    site = recipe.cluster.site
    profile, architecture = None, platform.machine()
    provided: tuple[str, ...] = ()
    if not isinstance(site, str):
        profile, provided, architecture = site.python, site.provides, site.architecture
    current = "{}.{}".format(*sys.version_info[:2])
    python = user.python or profile or current
    if not VERSION.fullmatch(python) or compare_version(python, PYTHON) == "below":
        oldest = "{}.{}".format(*PYTHON.first)
        problem = f"{python!r} is not a Python version of {oldest} or later"
        raise RecipeError("site.python", problem, f'write site.python="{current}"')
    return Target(python=python, provided=provided, architecture=architecture)


def open_stage(folder: Path) -> None:
    """Create or reopen a staging folder without other files; delete records until complete."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted(entry.name for entry in folder.iterdir())
        if others and MARK not in others:
            problem = f"{folder} contains {others[0]} and is not a stage"
            raise RecipeError("file", problem, "use an empty or new folder")
        (folder / MARK).touch()
        for record in (RECORD, SUMS):
            (folder / record).unlink(missing_ok=True)
    except OSError as error:
        raise RecipeError("file", f"cannot write {folder}: {error}", "use another") from None


def copy_tree(source: Path, target: Path) -> None:
    """Copy files that ``target`` lacks, by hard links if on the same file system."""
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


def copy_image(image: str | None, folder: Path) -> str | None:
    """Copy the container image, if any, and return its file name."""
    if image is None:
        return None
    source = Path(image)
    if not source.is_file():
        remedy = "use an image on this machine"
        raise RecipeError("site.image", f"{image} does not exist", remedy)
    with source.open("rb") as read, replace_atomically(folder / source.name) as write:
        shutil.copyfileobj(read, write)
    return source.name


def pins_for(lock: Path, python: str) -> list[str]:
    """Return a lock's entries with hashes, and with markers that match ``python`` (3.12)."""
    entries = read_lock(lock, python)
    return [f"{pin.name}{pin.specifier} \\{hashes}" for pin, hashes in entries]


def without_hashes(pins: list[str]) -> str:
    """Return the pins as constraints, one per line."""
    return "".join(f"{pin.partition(' ')[0]}\n" for pin in pins)


def fetch_packages(
    requirements: Path, locks: Sequence[str], target: Target, folder: Path
) -> list[Path]:
    """Download a wheel of each package to ``folder/wheels`` and return the wheels, sorted.

    pip checks each file against the hash in its lock. A package without a wheel on the index is
    built from source here. A result that is not a pure Python wheel is a RecipeError.
    """
    wheels = folder / FOLDER
    wheels.mkdir(parents=True, exist_ok=True)
    pins = [pin for lock in locks for pin in pins_for(requirements / lock, target.python)]
    for name, text in ((PINS, "".join(pins)), (CONSTRAINTS, without_hashes(pins))):
        (folder / name).write_text(text, "utf-8")
    into = ("--dest", str(wheels), *target.pip_options)
    options = ("--no-deps", "--no-build-isolation", "--require-hashes")
    _pip("download", *options, "--requirement", str(folder / PINS), *into)
    if "torch" not in target.provided:
        # The dependencies of torch's wheel differ by device and are not in the lock.
        wanted = ("--requirement", str(requirements / "torch.txt"), "--only-binary=:all:")
        pinned = ("--constraint", str(folder / CONSTRAINTS), "--find-links", str(wheels))
        _pip("download", *wanted, *pinned, *into)
    for source in sorted(wheels.glob("*.tar.gz")):
        _build(source)
    return sorted(wheels.glob("*.whl"))


def _build(source: Path) -> None:
    """Build a pure Python wheel from a source archive and delete the archive."""
    wheels = source.parent
    existing = set(wheels.glob("*.whl"))
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir")
    _pip("wheel", *options, str(wheels), str(source))
    for wheel in set(wheels.glob("*.whl")) - existing:
        if wheel.name.endswith("-none-any.whl"):
            continue
        wheel.unlink()
        raise RecipeError(
            f"requirements: {source.name}",
            f"no wheel exists, and a wheel built here ({wheel.name}) fits only this machine",
            "if the target's modules provide the package, add it to cluster.site.provides",
        )
    source.unlink()


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(
        command, env=python_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        raise RecipeError(
            "requirements",
            f"pip {words[0]}: {(errors or [done.stderr.strip()])[-1].removeprefix('ERROR: ')}",
            "stage on a machine with internet access; set the index of pip with PIP_INDEX_URL "
            "or PIP_EXTRA_INDEX_URL; repeat the command to continue",
        )


def bundle_code(repository: Path, folder: Path) -> str:
    """Write ``folder/repository.bundle`` and return its commit; refuse uncommitted changes."""
    commit = _git(repository, "rev-parse", "HEAD").strip()
    if changed := _git(repository, "status", "--porcelain").splitlines():
        raise RecipeError(
            "repository",
            f"{len(changed)} files differ from the commit, such as {changed[0][3:]}; the "
            "stage would not contain the changes",
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
        output = getattr(error, "stderr", "") or str(error)
        raise RecipeError(
            "repository",
            f"git {words[0]} in {repository}: {output.strip()}",
            "stage from a git clone",
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
    """Write ``folder/install.sh``. ``words`` are the arguments of the next command to run."""
    site = None if isinstance(recipe.cluster.site, str) else recipe.cluster.site
    systems = site.file_systems.values() if site else ()
    code = next((system for system in systems if "code" in system.purpose), None)
    limits = f" ({code.limits})" if code and code.limits else ""
    settings = {
        "name": recipe.name,
        "cluster": recipe.cluster.name,
        "where": f"recommended FOLDER: below {code.path}{limits}" if code else "",
        "modules": site.modules if site else (),
        "setup": site.setup if site else (),
        **asdict(target),
        "commit": commit,
        "image": image,
        "words": shlex.join(words),
    }
    script = folder / INSTALLER
    script.write_text(fill_template("install.sh.j2", settings), "utf-8")
    script.chmod(0o755)


def close_stage(folder: Path, facts: Mapping[str, Any]) -> list[FileRecord]:
    """Hash every file and write ``SHA256SUMS`` and ``stage.json``."""
    records = [
        replace(record_file(file), name=file.relative_to(folder).as_posix())
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.relative_to(folder).parts[0].startswith(".")
    ]
    sums = "".join(f"{record.sha256}  {record.name}\n" for record in records)
    tree = {**facts, "files": [asdict(record) for record in records]}
    for name, text in ((SUMS, sums), (RECORD, json.dumps(tree, indent=1) + "\n")):
        with replace_atomically(folder / name) as stream:
            stream.write(text.encode())
    return records
