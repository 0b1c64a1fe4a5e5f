"""Wheels of all that a run imports, for the target's Python, from the lock.

What pip has fetched already it does not fetch again, so an interrupted call goes on.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.staging.pins import pins_for, without_hashes
from cluster.staging.target import Target
from components.errors import RecipeError

FOLDER, PINS, CONSTRAINTS = "wheels", "packages.lock", "constraints.txt"
ANYWHERE = "-none-any.whl"


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
