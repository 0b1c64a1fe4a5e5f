"""A clock is compared by scheduler_command."""

import subprocess
import sys

import pytest

from command.arguments import ROOT
from components.preflight.node_checks import ask_time, telling_time

SKEWED = """
import sys, time
real = time.time
time.time = lambda: real() - 100
from components.preflight.node_checks import ask_time
sys.stdout.write(ask_time("127.0.0.1", int(sys.argv[1])).model_dump_json())
"""


def test_the_same_clock_is_not_ahead_of_itself() -> None:
    with telling_time() as port:
        found = ask_time("127.0.0.1", port)
    assert abs(found.ahead_seconds) <= found.uncertain_seconds < 1


def test_a_process_whose_clock_is_behind_learns_by_how_much() -> None:
    with telling_time() as port:
        words = [sys.executable, "-c", SKEWED, str(port)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    ahead = float(done.stdout.partition(":")[2].partition(",")[0])
    assert ahead == pytest.approx(100, abs=0.5)


def test_nobody_tells_the_time_any_more_once_all_have_asked() -> None:
    with telling_time() as port:
        pass
    with pytest.raises(ConnectionError):
        ask_time("127.0.0.1", port)
