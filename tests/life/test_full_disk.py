"""A rank that cannot write down why it ends, as on a full disk."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from components.checkpoint.metadata import newest_checkpoint
from components.fault_tolerance.failures import MENDABLE
from tests.life.conftest import ROOT, act, environment, tiny

pytestmark = pytest.mark.long

WORDS = tiny(
    "budget.total_tokens=2_048",
    "checkpoint.every_tokens=1_024",
    "checkpoint.retry_seconds=0",
    "evaluation.every_tokens=2_048",
    "evaluation.max_windows_per_source=4",
)


def test_what_a_rank_cannot_write_down_it_says_and_tells_by_its_status(home: Path) -> None:
    run = home / "run"
    assert act(home, *WORDS, f"run={run}") == 0
    newest = newest_checkpoint(run / "checkpoints")
    assert newest is not None
    shutil.rmtree(newest)
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").mkdir()
    assert not (run / "ranks").exists()  # nor room for it
    done = subprocess.run(
        [sys.executable, "-m", "components.train", str(run)],
        cwd=home,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == MENDABLE, done.stderr
    assert f"{run / 'events.jsonl'}: cannot be written: Is a directory" in done.stderr
    assert "Traceback" not in done.stderr
