"""A run needs nothing that only draws, searches or encodes faster, and says what it lacks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.life.conftest import ROOT, TINY, environment

MISSING = ("plotly", "optuna", "tensorboard", "fastokens", "torchao", "pynvml")
TOKENS = ("budget.total_tokens", "checkpoint.every_tokens", "evaluation.every_tokens")
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({MISSING}, None))
from command.entry import run_with_signals
sys.exit(run_with_signals(sys.argv[1:]))
"""


@pytest.mark.long
def test_two_steps_are_trained_without_packages_that_no_step_needs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    kept = [word for word in TINY if "_tokens=" not in word or "global" in word]
    words = [*kept, *(f"{key}=1_024" for key in TOKENS), f"run={run}"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "results.json").read_text("utf-8"))["steps"] == 2
    assert not (run / "report.html").exists()
    assert "no report written: plotly" in done.stderr
    assert "logger.tensorboard is skipped: " in done.stderr
    assert "report:" not in done.stdout
