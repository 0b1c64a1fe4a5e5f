"""Nobody trains where somebody trains: two commands at once, ranks without their command."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.run.writer_lock import LOCK, train_alone
from tests.life.conftest import Program, act, command, entries, environment, tiny

STEPS = 60
WORDS = tiny(
    f"budget.total_tokens={STEPS * 512}",
    f"checkpoint.every_tokens={20 * 512}",
    f"evaluation.every_tokens={STEPS * 512}",
    "evaluation.max_windows_per_source=4",
)
REFUSED = r"resume: \S+ is being trained by process (\d+) on host \S+ since 2"

Process = subprocess.Popen[str]


def start(home: Path, *words: str) -> Process:
    return subprocess.Popen(
        command(*words),
        cwd=home,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(holds: Callable[[], Any], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def losses(run: Path) -> list[tuple[int, float]]:
    return [(one["step"], one["loss"]) for one in entries(run, "step")]


@pytest.mark.long
def test_only_one_of_several_resume_commands_trains(home):
    whole, run = home / "whole", home / "begun"
    assert act(home, *WORDS, f"run={whole}") == 0
    first = start(home, *WORDS, f"run={run}")
    wait_until(lambda: len(entries(run, "step")) >= 3)
    first.send_signal(signal.SIGTERM)  # it saves and stops
    _, err = first.communicate(timeout=600)
    assert first.returncode == 3, err
    # Long enough for the others to meet the first, on a host however busy.
    slow = "guard.inject=[{fault: slow_rank, rank: 0, step: 50, seconds: 15, steps: 1}]"
    both = [start(home, f"resume={run}", slow) for _ in range(2)]
    wait_until(lambda: entries(run, "rehearsal"))
    assert act(home, f"resume={run}", "watchdog.every_steps=3") == 2
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["watchdog"]["every_steps"] != 3
    told = {process: process.communicate(timeout=600)[1] for process in both}
    refused, trained = sorted(both, key=lambda process: -process.returncode)
    assert [refused.returncode, trained.returncode] == [2, 0], told
    found = re.search(REFUSED, told[refused])
    assert found, told
    assert int(found[1]) == trained.pid
    assert f"let it save and stop: touch {run}/stop" in told[refused]
    assert losses(run) == losses(whole)
    assert (run / LOCK).read_text() == ""


@pytest.mark.long
def test_ranks_of_a_killed_command_keep_their_run_locked(home: Path, program: Program) -> None:
    run = home / "orphaned"
    long = [word for word in WORDS if not word.startswith("budget.total_tokens=")]
    # Not by a pipe: whoever reads one waits for the ranks, too.
    process = subprocess.Popen(
        command(*long, "budget.total_tokens=5_000_000", "cluster.ranks=2", f"run={run}"),
        cwd=home,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: entries(run, "step"))
    process.kill()
    process.wait()
    err = program(f"resume={run}", status=2).stderr
    found = re.search(REFUSED, err)
    assert found, err
    assert os.getpgid(int(found[1])) == int(found[1])  # the agent's, which goes on
    (run / "stop").touch()
    wait_until(lambda: (run / "results.json").exists())
    wait_until(lambda: not Path(f"/proc/{found[1]}").exists())
    with train_alone(run, "run"):
        pass  # it is nobody's now
