"""Staged software: this code, pinned packages as wheels, and their installation on the site.

What pip has fetched already it does not fetch again, so an interrupted call goes on.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from cluster.script import fill
from cluster.staging.folder import Target
from components.config.schema.cluster import Site
from components.config.schema.recipe import Recipe
from components.errors import RecipeError

FOLDER, PINS, CONSTRAINTS = "wheels", "packages.lock", "constraints.txt"
ANYWHERE = "-none-any.whl"
BUNDLE, INSTALLER = "repository.bundle", "install.sh"
BEGINNING = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)


def pins_for(lock: Path, python: str) -> list[str]:
    """Return the entries of a lock, hashes included, whose markers ``python`` (3.12) meets.

    All other markers are those of this machine: Linux for Linux.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    kept = []
    for entry in BEGINNING.split(lock.read_text("utf-8")):
        if not entry[:1].isalnum():
            continue
        words, _, hashes = entry.partition("\\")
        requirement = Requirement(words.strip())
        if requirement.marker is None or requirement.marker.evaluate(environment):
            kept.append(f"{requirement.name}{requirement.specifier} \\{hashes}")
    return kept


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
    options = (*own, "--requirement", str(folder / PINS))
    _pip("download", *options, *into)
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
    before = set(source.parent.glob("*.whl"))
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir")
    _pip("wheel", *options, str(source.parent), str(source))
    made = set(source.parent.glob("*.whl")) - before
    own = [wheel for wheel in made if not wheel.name.endswith(ANYWHERE)]
    if own:
        own[0].unlink()
        raise RecipeError(
            f"requirements: {source.name}",
            f"there is no wheel, and what is built here ({own[0].name}) is for this machine",
            "let the target's modules bring it: name it in cluster.site.provides",
        )
    source.unlink()


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
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
    settings = {
        "name": recipe.name,
        "cluster": recipe.cluster.name,
        "where": _where(site),
        "modules": site.modules if site else (),
        "setup": site.setup if site else (),
        "python": target.python,
        "provided": target.provided,
        "commit": commit,
        "image": image,
        "words": shlex.join(words),
    }
    script = folder / INSTALLER
    script.write_text(fill("install.sh.j2", settings), "utf-8")
    script.chmod(0o755)


def _where(site: Site | None) -> str:
    """Name the file system for code, and its limits."""
    for system in site.file_systems.values() if site else ():
        if "code" in system.purpose:
            limits = f" ({system.limits})" if system.limits else ""
            return f"FOLDER is best below {system.path}{limits}"
    return ""
