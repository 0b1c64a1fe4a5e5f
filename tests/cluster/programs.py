"""Schedulers' commands as tiny programs, first on the path: they say what a test lays down."""

import os
import shlex
from pathlib import Path

import pytest

from cluster.scheduler import user_name

Said = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def queued(logs: Path, *jobs: str, user: str | None = None) -> str:
    """Say as ``squeue`` does what a run's jobs are, each ``ID|STATE|REASON|NODES``."""
    return "".join(f"{job}|{user or user_name()}|{logs}/%A_%a.log|\n" for job in jobs)


class Programs:
    """Write programs into a folder; each notes the words with which it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes = folder / "notes"

    @property
    def path(self) -> str:
        """What ``PATH`` is with them."""
        return f"{self.folder}:{os.environ['PATH']}"

    def add(self, name: str, *, says: str = "", error: str = "", status: int = 0) -> None:
        """Write or replace one."""
        self.script(
            name,
            f"printf %s {shlex.quote(says)}\nprintf %s {shlex.quote(error)} >&2\nexit {status}",
        )

    def script(self, name: str, text: str) -> None:
        """Write or replace one that does what a few lines of shell say."""
        file = self.folder / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._notes}\n{text}\n')
        file.chmod(0o755)

    def calls(self) -> list[str]:
        """List the calls so far, the first first."""
        return self._notes.read_text().splitlines() if self._notes.exists() else []
