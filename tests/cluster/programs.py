"""Scheduler commands as tiny programs, first on the path, with answers from a test."""

import os
import shlex
from pathlib import Path

import pytest

from cluster.scheduler import user_name

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def queued(logs: Path, *jobs: str, user: str | None = None) -> str:
    """Format a run's jobs, each ``ID|STATE|REASON|NODES``, as ``squeue`` prints them."""
    return "".join(f"{job}|{user or user_name()}|{logs}/%A_%a.log|\n" for job in jobs)


class Programs:
    """Write programs into a folder. Each program records its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes = folder / "notes"

    @property
    def path(self) -> str:
        """``PATH`` with these programs first."""
        return f"{self.folder}:{os.environ['PATH']}"

    def add(self, name: str, *, says: str = "", error: str = "", status: int = 0) -> None:
        """Write or replace a program that prints a fixed text."""
        self.script(
            name,
            f"printf %s {shlex.quote(says)}\nprintf %s {shlex.quote(error)} >&2\nexit {status}",
        )

    def script(self, name: str, text: str) -> None:
        """Write or replace a program that runs a few lines of shell."""
        file = self.folder / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._notes}\n{text}\n')
        file.chmod(0o755)

    def calls(self) -> list[str]:
        """Return the calls so far, in their order."""
        return self._notes.read_text().splitlines() if self._notes.exists() else []
