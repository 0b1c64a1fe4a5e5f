"""Provenance: command, commit, versions, device, and the software that a run rests on."""

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
    """Collect what a reader needs to judge or repeat the run."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD").strip() or None,
        "dirty": bool(source_diff()),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "processor": next(names, platform.processor()),
        "cores": os.cpu_count(),
    }


def source_diff() -> str:
    """Return what differs from the commit; untracked files of the code by name.

    Others (locks, bundles, a user's recipes and data) change nothing of what it does.
    """
    untracked = git("ls-files", "--others", "--exclude-standard").splitlines()
    code = [name for name in untracked if any(_is_in(name, room) for room in ROOMS)]
    return "".join(f"# untracked: {name}\n" for name in code) + git("diff", "HEAD")


def _is_in(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}/")


def git(*words: str) -> str:
    """Ask git; a copy without its history has no answer."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",  # a changed file may be of any encoding
            check=False,
        )
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


# What a run computes is decided by these; the rest plans, prints and submits.
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
    """This repository: its commit, the hash of what differed from it, and of each room."""

    commit: Annotated[str, Field(pattern=rf"^([0-9a-f]{{40,64}}|{ABSENT})$")]
    changes: str
    rooms: FrozenMapping[str]


class Software(Section):
    """Interpreter, packages and code."""

    python: str
    packages: FrozenMapping[str]
    code: Code


def write_provenance(folder: RunFolder, words: Sequence[str]) -> None:
    """Write into a new run's folder what it is made with; ``words`` are the command's."""
    command = ["python", *sys.argv[:1], *words]
    folder.write_json("environment.json", describe_environment(command))
    folder.write_json("software.json", describe_software().model_dump(mode="json"))
    if diff := source_diff():
        (folder.path / "source.diff").write_text(diff, "utf-8")


def describe_software() -> Software:
    """Hash the code as it lies here, and ask for the versions that are installed."""
    changes = source_diff()
    code = Code(
        commit=git("rev-parse", "HEAD").strip() or ABSENT,
        changes=sha256(changes.encode()).hexdigest() if changes else ABSENT,
        rooms={room: hash_room(ROOT / room) for room in ROOMS},
    )
    packages = {name: version_of(name) for name in sorted({"torch", *required(RECORDED)})}
    return Software(python=platform.python_version(), packages=packages, code=code)


def hash_room(place: Path) -> str:
    """Hash the names and contents of a file, or all that are in a folder."""
    digest = sha256()
    for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if file.is_file() and "__pycache__" not in file.parts:
            name = file.relative_to(place.parent).as_posix()
            digest.update(f"{name}\0{sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def files_changed(commit: str, room: str) -> list[str]:
    """Ask git which files of a room differ from ``commit``; none if it cannot tell."""
    if commit == ABSENT:
        return []
    return git("diff", "--name-only", commit, "--", room).splitlines()


def parts_of(recipe: Recipe) -> list[str]:
    """Name the files of ``requirements/`` that have what the recipe's ranks import."""
    deepspeed = recipe.parallelism.engine == "deepspeed"
    asked = {"run": True, "deepspeed": deepspeed, "fp8": recipe.precision.compute == FLOAT8}
    return [part for part, needed in asked.items() if needed]


def required(parts: Sequence[str]) -> list[str]:
    """Name the packages that the files of ``requirements/`` ask for by name, but torch."""
    texts = [(ROOT / "requirements" / f"{part}.in").read_text("utf-8") for part in parts]
    return sorted({name for text in texts for name in REQUIREMENT.findall(text)})


def version_of(name: str) -> str:
    """Ask for the version that is installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ABSENT
