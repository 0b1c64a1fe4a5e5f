"""What 1.4 million logged steps cost a rank that goes on with their run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.life.conftest import ROOT, TINY, act, entries, environment

STEPS, ENERGY_STEPS, HELD_OUT_STEPS = 1_400_000, 20, 1_000
MOST_CPU_SECONDS, MOST_BYTES = 2.0, 200e6  # beside those of a run without these lines


def add_lines(run: Path) -> None:
    """Put lines of ``STEPS`` steps before the file's own, of no more tokens than these have."""
    file = run / "metrics.jsonl"
    own = file.read_text("utf-8")
    first, *_ = own.splitlines(keepends=True)
    last = {kind: entries(run, kind)[-1] for kind in ("step", "energy", "held_out")}
    every = {"step": 1, "energy": ENERGY_STEPS, "held_out": HELD_OUT_STEPS}
    tokens, time = last["step"]["tokens"], json.loads(first)["time"]
    texts = {kind: json.dumps(line | _place(time, "%d")) for kind, line in last.items()}
    with file.open("w", encoding="utf-8") as stream:
        stream.write(first)
        for step in range(1, STEPS):
            stream.writelines(
                texts[kind].replace('"%d"', str(1 + step * tokens // STEPS)) + "\n"
                for kind, steps in every.items()
                if step % steps == 0
            )
        stream.write(own)


def _place(time: float, tokens: str) -> dict[str, Any]:
    return {"time": time, "step": 1, "tokens": tokens}


def go_on(run: Path) -> tuple[float, int]:
    """Return CPU seconds and peak bytes of a rank that takes the last steps of a run."""
    command = [sys.executable, "-m", "components.train", str(run)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1_024


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_resuming_a_long_run_costs_as_much_as_an_empty_run(home):
    """CPU time is compared: other work on the host changes it less than the wall clock."""
    short, long = home / "short", home / "long"
    assert act(home, *TINY, f"run={short}") == 0
    for checkpoint in sorted((short / "checkpoints").iterdir())[1:]:
        shutil.rmtree(checkpoint)
    (short / "results.json").unlink()
    shutil.copytree(short, long)
    add_lines(long)
    assert (long / "metrics.jsonl").stat().st_size > 300 * STEPS
    (seconds, memory), (more_seconds, more_memory) = go_on(short), go_on(long)
    assert more_seconds - seconds < MOST_CPU_SECONDS
    assert more_memory - memory < MOST_BYTES
    results = [json.loads((run / "results.json").read_text()) for run in (short, long)]
    assert results[0]["held_out"]["final"] == results[1]["held_out"]["final"]
    assert results[0]["held_out"]["first"] == results[1]["held_out"]["first"]
