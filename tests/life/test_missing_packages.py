"""A run needs nothing that only draws, searches or encodes faster, and says what it lacks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.life.conftest import ROOT, environment, tiny

MISSING = ("plotly", "optuna", "tensorboard", "fastokens", "torchao", "pynvml")
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({MISSING}, None))
from command.entry import run_with_signals
sys.exit(run_with_signals(sys.argv[1:]))
"""


@pytest.mark.long
def test_a_run_trains_without_optional_packages(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = tiny("budget.total_tokens=1_024", "checkpoint.every_tokens=1_024")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, f"run={run}"],
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
