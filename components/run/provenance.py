"""Provenance of a run: command, commit, versions, device and software."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from components.config.recipe import Recipe
from components.config.rules.engine import FLOAT8
from components.config.schema.types import FrozenMapping, Section
from components.run.folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "lightning", "hydra-core", "pydantic", "numpy", "sentencepiece")


def describe_environment(command: list[str]) -> dict[str, Any]:
    """Return the facts needed to judge or repeat the run."""
    return {
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": run_git("rev-parse", "HEAD").strip() or None,
        "dirty": bool(source_diff()),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
    }


def processor_name() -> str:
    """Return the name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def source_diff() -> str:
    """Return the diff to the commit, with the names of untracked code files.

    Other untracked files (locks, bundles, a user's recipes and data) do not change the code.
    """
    untracked = run_git("ls-files", "--others", "--exclude-standard").splitlines()
    code = [name for name in untracked if any(Path(name).is_relative_to(r) for r in ROOMS)]
    return "".join(f"# untracked: {name}\n" for name in code) + run_git("diff", "HEAD")


def run_git(*words: str) -> str:
    """Return the output of a git command; empty if git fails, as without a repository."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",  # changed files may have any encoding
            check=False,
        )
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


# Code that determines what a run computes. The rest plans, prints and submits.
COMPUTING = (
    *("components/build.py", "components/config", "components/data", "components/distributed"),
    *("components/engine", "components/model", "components/optim"),
    *("components/torch_internals", "components/train", "corpora", "data_prep"),
)
ROOMS = (
    *COMPUTING,
    *("cluster", "command", "components/child_process.py", "components/convert"),
    *("components/dryrun", "components/energy"),
    *("components/errors.py", "components/evaluate", "components/json_file.py"),
    *("components/parity", "components/planner"),
    *("components/preflight", "components/report", "components/run", "components/sharing"),
    *("components/tracking", "components/versions.py"),
    *("conf", "recipes", "run.py"),
)
RECORDED = ("run", "data", "deepspeed", "fp8")  # files of requirements/
REQUIREMENT = re.compile(r"^[A-Za-z0-9][\w.-]*", re.MULTILINE)
ABSENT = "absent"


class Code(Section):
    """This repository: commit, hash of the changes, and hash of each part (``rooms``)."""

    commit: Annotated[str, Field(pattern=rf"^([0-9a-f]{{40,64}}|{ABSENT})$")]
    changes: str
    rooms: FrozenMapping[str]


class Software(Section):
    """Versions of the interpreter, packages and code."""

    python: str
    packages: FrozenMapping[str]
    code: Code


def write_provenance(folder: RunFolder, words: Sequence[str]) -> None:
    """Write environment, software, code changes and the command's ``words`` to a new run."""
    command = ["python", *sys.argv[:1], *words]
    folder.write_json("environment.json", describe_environment(command))
    folder.write_json("software.json", describe_software().model_dump(mode="json"))
    if diff := source_diff():
        (folder.path / "source.diff").write_text(diff, "utf-8")


def describe_software() -> Software:
    """Return hashes of the code on disk and the versions of installed packages."""
    changes = source_diff()
    code = Code(
        commit=run_git("rev-parse", "HEAD").strip() or ABSENT,
        changes=sha256(changes.encode()).hexdigest() if changes else ABSENT,
        rooms={room: hash_room(ROOT / room) for room in ROOMS},
    )
    packages = {name: version_of(name) for name in sorted({"torch", *list_required(RECORDED)})}
    return Software(python=platform.python_version(), packages=packages, code=code)


def hash_room(place: Path) -> str:
    """Return a hash of the name and content of a file, or of all files in a folder."""
    digest = sha256()
    for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if file.is_file() and "__pycache__" not in file.parts:
            name = file.relative_to(place.parent).as_posix()
            digest.update(f"{name}\0{sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def files_changed(commit: str, room: str) -> list[str]:
    """Return the files of ``room`` that differ from ``commit``; empty if git fails."""
    if commit == ABSENT:
        return []
    return run_git("diff", "--name-only", commit, "--", room).splitlines()


def parts_of(recipe: Recipe) -> list[str]:
    """Return the names of the ``requirements/`` files that the recipe's ranks need."""
    deepspeed = recipe.parallelism.engine == "deepspeed"
    files = {"run": True, "deepspeed": deepspeed, "fp8": recipe.precision.compute == FLOAT8}
    return [part for part, needed in files.items() if needed]


def list_required(parts: Sequence[str]) -> list[str]:
    """Return the sorted packages in the ``requirements/`` files of ``parts``, without torch."""
    texts = [(ROOT / "requirements" / f"{part}.in").read_text("utf-8") for part in parts]
    return sorted({name for text in texts for name in REQUIREMENT.findall(text)})


def version_of(name: str) -> str:
    """Return the installed version of a package, or ``ABSENT``."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ABSENT
