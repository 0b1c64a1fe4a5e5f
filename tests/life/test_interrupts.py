"""Signals at any moment: a word, a status, and a run that goes on."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.life.conftest import ROOT, TINY, act, command, entries, environment, tiny

pytestmark = pytest.mark.long

WORDS = tiny(
    "budget.total_tokens=50_000_000",
    "checkpoint.every_tokens=2_560",
    "evaluation.every_tokens=50_000_000",
    "evaluation.max_windows_per_source=4",
)


@pytest.fixture(scope="module", autouse=True)
def prepared(home: Path) -> None:
    assert act(home, *TINY, "action=prepare") == 0


class Running:
    """A process of the real program, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process = process
        self._said = said

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait_until(self, holds: Callable[[], Any]) -> None:
        end = time.monotonic() + 600
        while not holds():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.02)

    def ended(self, seconds: float = 60) -> int:
        status = self.process.wait(seconds)
        assert "Traceback" not in self.said, self.said
        return status


@contextmanager
def started(home: Path, *words: str) -> Iterator[Running]:
    said = home / f"said-{time.time_ns()}"
    with said.open("wb") as file:
        process = subprocess.Popen(
            command(*words),
            cwd=home,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield Running(process, said)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("ranks", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_a_signal_during_a_blocked_save_ends_the_run(home, ranks, number):
    run = home / f"away-{ranks}-{number}"
    with started(home, *WORDS, f"cluster.ranks={ranks}", f"run={run}") as running:
        running.wait_until(lambda: entries(run, "checkpoint"))
        (run / "checkpoints").rename(run / "away")
        running.wait_until(lambda: "trying again for 600 s" in running.said)
        running.process.send_signal(number)
        assert running.ended(20) == 2
    assert re.search(r"No such file or directory; a stop was requested", running.said)
    assert "then resume the run: the previous checkpoint is complete" in running.said


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_interrupt_ends_a_run_at_once(home: Path, ranks: int) -> None:
    run = home / f"twice-{ranks}"
    slow = "guard.inject=[{fault: slow_rank, rank: 0, step: 7, seconds: 20, steps: 1}]"
    kept = run / "checkpoints" / "tokens-000000000002560"
    with started(home, *WORDS, slow, f"cluster.ranks={ranks}", f"run={run}") as running:
        running.wait_until(lambda: entries(run, "rehearsal") and kept.exists())
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGINT)
        assert running.ended(10) == 130
    resume = f"python {ROOT / 'run.py'} resume={run}"
    line = f"interrupted: the last checkpoint is {kept}; continue with: {resume}"
    assert line in running.said.splitlines()
    assert ranks_of(run) == []


def ranks_of(run: Path) -> list[str]:
    """List the processes that still work for the run."""
    done = subprocess.run(
        ["pgrep", "-f", str(run)], capture_output=True, text=True, check=False
    )
    return [pid for pid in done.stdout.split() if int(pid) != os.getpid()]


@pytest.mark.parametrize(("ranks", "moment"), [(1, "data:"), (1, "run:"), (2, "run:")])
def test_a_run_interrupted_before_its_first_step_resumes(home, ranks, moment):
    """Before the run has a folder, and while its ranks start."""
    run = home / f"early-{ranks}-{moment}"
    words = tiny("budget.total_tokens=2_048")
    with started(home, *words, f"cluster.ranks={ranks}", f"run={run}") as running:
        running.wait_until(lambda: moment in running.said)
        running.process.send_signal(signal.SIGINT)
        status = running.ended()
    assert status in {3, 130}
    assert ranks_of(run) == []
    if status == 130:
        resume = f"python {ROOT / 'run.py'} resume={run}"
        way = f"interrupted: no checkpoint is complete; continue with: {resume}"
        before_it_began = "stopped; incomplete files were removed"
        assert {way, before_it_began} & set(running.said.splitlines())
    if run.exists():
        assert act(home, f"resume={run}", "parallelism.data=1") == 0
    else:
        assert "incomplete files were removed" in running.said


@pytest.mark.parametrize(("how", "ranks"), [("removed", 1), ("replaced", 2), ("saving", 2)])
def test_a_run_ends_when_its_folder_is_moved(how: str, ranks: int, home: Path) -> None:
    run = home / f"gone-{how}-{ranks}"
    words = (*WORDS, f"run={run}", f"cluster.ranks={ranks}", "checkpoint.retry_seconds=1")
    with started(home, *words) as running:
        running.wait_until(lambda: (run / "metrics.jsonl").exists() and entries(run, "step"))
        if how == "saving":
            running.wait_until(lambda: any((run / "checkpoints").iterdir()))
        run.rename(run.with_suffix(".moved"))
        if how == "replaced":
            run.mkdir()
        assert running.ended(120) == 2
        assert "removed or moved" in running.said
