"""Nobody trains where somebody trains: two commands at once, ranks without their command."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.run.writer_lock import LOCK
from tests.life.conftest import TINY, act, command, entries, environment

STEPS = 60
KEPT = [word for word in TINY if word.split("=")[0] not in {"budget.total_tokens"}]
WORDS = (
    *(word for word in KEPT if not word.startswith(("checkpoint.", "evaluation."))),
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


def stop_after(home: Path, run: Path, steps: int, *words: str) -> None:
    """Begin the run and let it save and stop after some steps."""
    process = start(home, *words, f"run={run}")
    wait_until(lambda: len(entries(run, "step")) >= steps)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 3, err


def losses(run: Path) -> list[tuple[int, float]]:
    return [(one["step"], one["loss"]) for one in entries(run, "step")]


@pytest.fixture(scope="module")
def begun(home: Path) -> tuple[Path, list[tuple[int, float]]]:
    """A run of one process that was stopped, and the losses of one that was left alone."""
    whole, run = home / "whole", home / "begun"
    assert act(home, *WORDS, f"run={whole}") == 0
    stop_after(home, run, 3, *WORDS)
    return run, losses(whole)


@pytest.mark.long
def test_of_two_commands_that_resume_a_run_at_once_one_is_refused(
    home: Path, begun: tuple[Path, list[tuple[int, float]]]
) -> None:
    run, expected = begun
    at_once = home / f"at-once-{run.name}"
    shutil.copytree(run, at_once)
    # Long enough for the second to meet the first, on a host however busy.
    slow = "guard.inject=[{fault: slow_rank, rank: 0, step: 50, seconds: 15, steps: 1}]"
    both = [start(home, f"resume={at_once}", slow) for _ in range(2)]
    told = {process: process.communicate(timeout=600)[1] for process in both}
    refused, trained = sorted(both, key=lambda process: -process.returncode)
    assert [refused.returncode, trained.returncode] == [2, 0], told
    found = re.search(REFUSED, told[refused])
    assert found, told
    assert int(found[1]) == trained.pid
    assert f"let it save and stop: touch {at_once}/stop" in told[refused]
    assert losses(at_once) == expected
    assert (at_once / LOCK).read_text() == ""


@pytest.mark.long
def test_who_resumes_a_run_that_trains_is_refused_and_changes_nothing(
    home: Path, begun: tuple[Path, list[tuple[int, float]]]
) -> None:
    run, expected = begun
    before = len(losses(run))
    first = start(home, f"resume={run}")
    wait_until(lambda: len(losses(run)) > before)
    assert act(home, f"resume={run}", "watchdog.every_steps=3") == 2
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["watchdog"]["every_steps"] != 3
    _, err = first.communicate(timeout=600)
    assert first.returncode == 0, err
    assert losses(run) == expected


@pytest.mark.long
def test_ranks_whose_command_was_killed_still_hold_their_run(home: Path) -> None:
    run = home / "orphaned"
    words = [word for word in WORDS if not word.startswith("budget.total_tokens")]
    words += ["budget.total_tokens=5_000_000", "cluster.ranks=2"]
    # Not by a pipe: whoever reads one waits for the ranks, too.
    process = subprocess.Popen(
        command(*words, f"run={run}"),
        cwd=home,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: entries(run, "step"))
    process.kill()
    process.wait()
    refused = start(home, f"resume={run}")
    _, err = refused.communicate(timeout=600)
    assert refused.returncode == 2, err
    found = re.search(REFUSED, err)
    assert found, err
    assert os.getpgid(int(found[1])) == int(found[1])  # the agent's, which goes on
    (run / "stop").touch()
    wait_until(lambda: (run / "results.json").exists())
    wait_until(lambda: not Path(f"/proc/{found[1]}").exists())
    again = start(home, f"resume={run}")
    wait_until(lambda: entries(run, "resume"))
    again.send_signal(signal.SIGTERM)
    _, err = again.communicate(timeout=600)
    assert again.returncode == 3, err
