"""Virtual environments with one release of torch each, in the user's cache folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from benchmarks.results_store import ROOT
from components.child_process import python_environment
from components.errors import RecipeError
from components.versions import LOCKED, TORCH_RELEASES

REQUIREMENTS = ROOT / "requirements"
LOCKS = ("dev.lock", "data.lock", "evaluate.lock", "tracking.lock", "fp8.lock")
OWN_PYTHON, OTHER_PYTHONS = "3.11", ("3.12", "3.13")


@dataclass(frozen=True)
class TorchEnvironment:
    """One torch with one Python; ``whole`` adds the tests and the resumption of runs."""

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


# The losses of REFERENCE are the expected ones. Newer Pythons are tested with the newest torch.
REFERENCE = TorchEnvironment(LOCKED, OWN_PYTHON, whole=True)
ENVIRONMENTS = (
    *(TorchEnvironment(torch, OWN_PYTHON, whole=True) for torch in TORCH_RELEASES),
    *(TorchEnvironment(TORCH_RELEASES[-1], python, whole=False) for python in OTHER_PYTHONS),
)


def select_environments(words: list[str]) -> Iterator[TorchEnvironment]:
    """Select environments by torch, or by torch and Python: ``2.15.0``, ``2.15.0-py3.12``.

    Raises:
        RecipeError: an argument is not an environment.
    """
    for word in words:
        if not any(word in {tried.torch, tried.name} for tried in ENVIRONMENTS):
            names = ", ".join(tried.name for tried in ENVIRONMENTS)
            raise RecipeError("versions", f"{word!r} is not tested", f"choose from {names}")
    for environment in ENVIRONMENTS:
        if not words or {environment.torch, environment.name} & {*words}:
            yield environment


def build_environment(environment: TorchEnvironment) -> None:
    """Install torch and the locks, unless the same locks are already installed.

    Raises:
        RecipeError: this machine does not have the Python version.
        CalledProcessError: pip fails; its output contains the reason.
    """
    marker = environment.folder / "ready"
    if marker.exists() and marker.read_text("utf-8") == hash_locks():
        return
    sys.stderr.write(f"building {environment.folder}\n")
    python = shutil.which(f"python{environment.python}")
    if python is None:
        problem = f"this machine has no python{environment.python}"
        raise RecipeError("versions", problem, "install it, or add its folder to PATH")
    shutil.rmtree(environment.folder, ignore_errors=True)
    subprocess.run(
        [python, "-m", "venv", str(environment.folder)], env=python_environment(), check=True
    )
    locked = ("--require-hashes", "--no-deps")
    _install(environment, *locked, *_requirements(*LOCKS))
    _install(environment, f"torch=={environment.torch}")
    _install(environment, *locked, "--no-build-isolation", *_requirements("deepspeed.lock"))
    marker.write_text(hash_locks(), "utf-8")


def _install(environment: TorchEnvironment, *words: str) -> None:
    subprocess.run(
        [environment.program, "-m", "pip", "install", "--quiet", *words],
        env=python_environment(os.environ | {"DS_BUILD_OPS": "0"}),
        check=True,
    )


def _requirements(*names: str) -> Iterator[str]:
    for name in names:
        yield from ("-r", str(REQUIREMENTS / name))


def hash_locks() -> str:
    """Hash the locks that are installed with torch."""
    files = [(REQUIREMENTS / name).read_bytes() for name in (*LOCKS, "deepspeed.lock")]
    return sha256(b"".join(files)).hexdigest()
