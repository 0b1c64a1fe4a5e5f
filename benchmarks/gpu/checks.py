"""Cases that call other programs of this repository: tests, peaks, guards, checkpoints."""

import contextlib
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import yaml

from benchmarks.gpu.cases import ResultFields
from benchmarks.gpu.observing import this_device
from benchmarks.gpu.own_step import join_world
from benchmarks.peaks import main as print_peaks
from benchmarks.pytest_report import run_pytest
from benchmarks.training import guards as guard_benchmark
from benchmarks.training.checkpoints import Weights, make_saver, save_once


def run_tests(paths: Sequence[str]) -> ResultFields:
    """Run tests; return the number of passes, and the other outcomes with their messages."""
    return run_pytest(sys.executable, paths)


def measure_peaks(words: Sequence[str] = ()) -> ResultFields:
    """Measure the peak rates of the device, and the products of a recipe's layers."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        print_peaks(words)
    figures: ResultFields = yaml.safe_load(output.getvalue())
    return figures


def measure_guards(words: list[str], pairs: int = guard_benchmark.PAIRS) -> ResultFields:
    """Time steps with and without guards in alternation."""
    return guard_benchmark.measure_steps(words, pairs=pairs)


def measure_stall(layers: int, dim: int, rounds: int) -> ResultFields:
    """Save weights from the device; return the seconds of a save and of its stall."""
    device = this_device()
    join_world(device)
    state = Weights(layers, dim, device)
    figures: ResultFields = {"bytes": state.bytes}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("synchronous", "asynchronous"):
            target = Path(folder) / name
            target.mkdir()
            saver = make_saver(target, asynchronous=name == "asynchronous", device=device)
            # The first save allocates the buffers.
            saves = [save_once(saver, state, turn) for turn in range(1, rounds + 2)][1:]
            saver.close()
            figures[name] = {
                "seconds": median(save.seconds for save in saves),
                "stall_seconds": median(save.stall_seconds for save in saves),
            }
    return figures
