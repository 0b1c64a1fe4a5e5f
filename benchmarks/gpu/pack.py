"""Collect what a GPU machine without a network lacks, as wheels in gpu/wheels.

    python -m benchmarks.gpu.pack [python=3.12] [to=gpu/wheels]

`requirements/gpu.txt` names it, the locks have the versions. Together with the checkout it must
stay below what such a machine takes.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement

from benchmarks.entry import enter
from command.arguments import ROOT
from components.child_process import python_environment
from components.errors import RecipeError

NAMES = ROOT / "requirements" / "gpu.txt"
LOCKS = [ROOT / "requirements" / f"{name}.lock" for name in ("run", "dev", "fp8")]
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
MOST_BYTES = 50_000_000
_PINNED = re.compile(r"^([A-Za-z0-9_.-]+==[^\s\\]+(?: ; [^\\]*)?)", re.MULTILINE)
_SOURCES = ("antlr4-python3-runtime",)  # of which there is no wheel


def wanted(python: str) -> Iterator[Requirement]:
    """Read what is missing, each with its version for such a Python.

    Raises:
        RecipeError: a name that no lock has.
    """
    locked = locked_versions(python)
    for line in NAMES.read_text("utf-8").splitlines():
        if not (text := line.partition("#")[0].strip()):
            continue
        asked = Requirement(text)
        if asked.specifier:
            yield asked
        elif asked.name in locked:
            yield locked[asked.name]
        else:
            problem = f"{asked.name} has no version, and no lock has one"
            raise RecipeError("requirements/gpu.txt", problem, f"write {asked.name}==VERSION")


def locked_versions(python: str) -> Mapping[str, Requirement]:
    """Read the versions that the locks have on Linux under such a Python."""
    here: dict[str, Any] = {
        **default_environment(),
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }
    here |= {"python_version": python, "python_full_version": f"{python}.0"}
    found = [
        Requirement(one) for file in LOCKS for one in _PINNED.findall(file.read_text("utf-8"))
    ]
    return {
        one.name: Requirement(f"{one.name}{one.specifier}")
        for one in found
        if one.marker is None or one.marker.evaluate(here)
    }


def collect(packages: list[Requirement], folder: Path, python: str) -> None:
    """Put a wheel of each into ``folder``, which then has nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    sources = [str(one) for one in packages if one.name in _SOURCES]
    wheels = [str(one) for one in packages if one.name not in _SOURCES]
    tags = ["--python-version", python, "--implementation", "cp", "--only-binary=:all:"]
    number = python.replace(".", "")
    tags += [f"--abi={abi}" for abi in (f"cp{number}", "abi3", "none")]
    tags += [f"--platform={platform}" for platform in PLATFORMS]
    for words in (
        ["wheel", "-w", str(folder), *sources],
        ["download", "-d", str(folder), *tags, *wheels],
    ):
        subprocess.run(
            [*pip, words[0], "--no-deps", *words[1:]], env=python_environment(), check=True
        )


def tree_bytes() -> int:
    """Add up the checkout: what git knows, and what it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    files = (ROOT / name for name in listed.split("\0") if name)
    return sum(file.lstat().st_size for file in files if file.is_file())


def check_size(folder: Path, *, most: int = MOST_BYTES) -> int:
    """Add up what has to travel.

    Raises:
        RecipeError: it is more than that.
    """
    wheels, tree = sum(file.stat().st_size for file in folder.glob("*")), tree_bytes()
    if wheels + tree > most:
        raise RecipeError(
            str(folder),
            f"{wheels / 1e6:.1f} MB of wheels and {tree / 1e6:.1f} MB of checkout are more "
            f"than {most / 1e6:.0f} MB",
            "take names out of requirements/gpu.txt, or files out of the checkout",
        )
    return wheels + tree


def main(words: list[str]) -> int:
    """Collect, check and say how much it is."""
    options = dict(word.partition("=")[::2] for word in words)
    python, folder = (
        options.get("python", "3.12"),
        Path(options.get("to", ROOT / "gpu" / "wheels")),
    )
    packages = list(wanted(python))
    collect(packages, folder, python)
    whole = check_size(folder)
    print(f"{len(packages)} wheels in {folder}; with the checkout {whole / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    enter(main, most=2)
