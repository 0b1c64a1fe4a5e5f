"""Signals at any moment: one word, a status, nothing left."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG = ("recipe=teuken7b", "action=plan", "cluster=juwels", "parallelism=auto", "scale=full")
WORDS = {"stopped before any work started\n", "stopped; incomplete files were removed\n"}


def start(*words: str, folder: Path, before: str = "") -> subprocess.Popen[str]:
    """Start a process, and wait until its first line of ours is executed."""
    return subprocess.Popen(
        [sys.executable, "-c", before + ENTER, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# As run.py, with a word when the handlers are there.
ENTER = """
import sys
from command import entry
handle = entry._handle
def said(handler):
    handle(handler)
    print("heard", flush=True)
    entry._handle = handle
entry._handle = said
sys.exit(entry.run_with_signals(sys.argv[1:]))
"""


@pytest.mark.quick("0-2", "0.3-15", "0.8-2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0, 0.1, 0.3, 0.8])
def test_signal_at_any_moment(number: signal.Signals, seconds: float, tmp_path: Path) -> None:
    with start(*LONG, folder=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "heard\n"
        time.sleep(seconds)
        process.send_signal(number)
        _, said = process.communicate(timeout=600)
    assert said in WORDS
    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_process_started_with_ignored_signals_continues(tmp_path: Path) -> None:
    """As below ``nohup``, or in the background of a script."""
    program = f"trap '' INT; exec {sys.executable} {ROOT / 'run.py'}"
    with subprocess.Popen(
        ["sh", "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        listed, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert "teuken7b" in listed


def run_program(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new process, with the repository as its folder."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


HEAD = """
import signal, sys, time
from command import entry
entry._handle(entry._raise)
sys.unraisablehook = entry._hear_again
"""
# At each of these moments an exception would be dropped, abort the process, or be reported as
# an error of somebody else.
MOMENTS = {
    "in a finalizer": """
class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
Finalized()
print("done", flush=True)
""",
    "in an import": "import slow",
    "while pydantic builds a model": """
from pydantic import BaseModel
class Given:
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        signal.raise_signal(signal.SIGTERM)
        return handler(int)
class Model(BaseModel):
    given: Given
print("done")
""",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_waits_for_uninterruptible_work(moment: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import signal\nsignal.raise_signal(15)\nprint('done')\n")
    body = textwrap.indent(f"{MOMENTS[moment]}\ntime.sleep(10)", "    ")
    program = (
        f"{HEAD}try:\n{body}\nexcept entry.StopSignal as stopped:\n    print(stopped.number)"
    )
    done = run_program(program, PYTHONPATH=str(tmp_path))
    assert done.stdout.endswith("15\n")
    assert done.stdout.startswith("done") or moment == "in a finalizer"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("error", "said"),
    [("MemoryError", "^$"), ("KeyError(7)", "Exception ignored in.*KeyError: 7")],
)
def test_out_of_memory_in_a_finalizer_prints_no_traceback(error: str, said: str) -> None:
    program = (
        f"{HEAD}\nclass Finalized:\n    def __del__(self):\n        raise {error}\nFinalized()"
    )
    done = run_program(program)
    assert done.returncode == 0
    assert re.search(said, done.stderr, re.S)
