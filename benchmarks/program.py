"""Runs of the command in new processes."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks.results_store import ROOT
from components.child_process import python_environment

LAST_CHARACTERS = 4_000  # of the errors of a run that fails


def run_program(
    *words: str,
    home: Path = ROOT,
    python: str = sys.executable,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Run the command in a folder and return its output.

    Raises:
        RuntimeError: the command failed; the message contains its last errors.
    """
    process = subprocess.run(
        [python, str(ROOT / "run.py"), *words],
        cwd=home,
        env=python_environment({**os.environ, **environment}),
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        errors = process.stderr.strip()[-LAST_CHARACTERS:]
        raise RuntimeError(f"{' '.join(words)}: status {process.returncode}\n{errors}")
    return process.stdout
