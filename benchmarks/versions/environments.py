"""Virtual environments with one release of torch each, outside of the tree, and kept."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from benchmarks.kept import ROOT
from components.child_process import python_environment
from components.errors import RecipeError
from components.versions import LOCKED, TORCH_RELEASES

REQUIREMENTS = ROOT / "requirements"
LOCKS = ("dev.lock", "data.lock", "evaluate.lock", "tracking.lock", "fp8.lock")
OWN_PYTHON, OTHER_PYTHONS = "3.11", ("3.12", "3.13")


@dataclass(frozen=True)
class TorchEnvironment:
    """One torch under one Python; ``whole`` has its tests run and runs going on there."""

    torch: str
    python: str
    whole: bool

    @property
    def name(self) -> str:
        return f"{self.torch}-py{self.python}"

    @property
    def folder(self) -> Path:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(home) / "kochbuch" / f"torch-{self.name}"

    @property
    def program(self) -> str:
        return str(self.folder / "bin" / "python")


# Where the others' losses come from; the newest is also tried under the newer Pythons.
REFERENCE = TorchEnvironment(LOCKED, OWN_PYTHON, whole=True)
ENVIRONMENTS = (
    *(TorchEnvironment(torch, OWN_PYTHON, whole=True) for torch in TORCH_RELEASES),
    *(TorchEnvironment(TORCH_RELEASES[-1], python, whole=False) for python in OTHER_PYTHONS),
)


def chosen(words: list[str]) -> Iterator[TorchEnvironment]:
    """Choose environments by torch, or by torch and Python: ``2.15.0``, ``2.15.0-py3.12``.

    Raises:
        RecipeError: a word names none.
    """
    for word in words:
        if not any(word in {one.torch, one.name} for one in ENVIRONMENTS):
            names = ", ".join(one.name for one in ENVIRONMENTS)
            raise RecipeError("versions", f"{word!r} is not tried", f"choose of {names}")
    for one in ENVIRONMENTS:
        if not words or {one.torch, one.name} & {*words}:
            yield one


def build(environment: TorchEnvironment) -> None:
    """Install torch and the locks, unless they were, by the same locks.

    Raises:
        RecipeError: there is no such Python here.
        CalledProcessError: an installation fails; it said why.
    """
    marker = environment.folder / "ready"
    if marker.exists() and marker.read_text("utf-8") == digest():
        return
    sys.stderr.write(f"building {environment.folder}\n")
    python = shutil.which(f"python{environment.python}")
    if python is None:
        problem = f"there is no python{environment.python} here"
        raise RecipeError("versions", problem, "install it, or put its folder on PATH")
    shutil.rmtree(environment.folder, ignore_errors=True)
    subprocess.run(
        [python, "-m", "venv", str(environment.folder)], env=python_environment(), check=True
    )
    locked = ("--require-hashes", "--no-deps")
    _install(environment, *locked, *_files(*LOCKS))
    _install(environment, f"torch=={environment.torch}")
    _install(environment, *locked, "--no-build-isolation", *_files("deepspeed.lock"))
    marker.write_text(digest(), "utf-8")


def _install(environment: TorchEnvironment, *words: str) -> None:
    subprocess.run(
        [environment.program, "-m", "pip", "install", "--quiet", *words],
        env=python_environment(os.environ | {"DS_BUILD_OPS": "0"}),
        check=True,
    )


def _files(*names: str) -> Iterator[str]:
    for name in names:
        yield from ("-r", str(REQUIREMENTS / name))


def digest() -> str:
    """Hash what is installed beside torch."""
    files = [(REQUIREMENTS / name).read_bytes() for name in (*LOCKS, "deepspeed.lock")]
    return sha256(b"".join(files)).hexdigest()
