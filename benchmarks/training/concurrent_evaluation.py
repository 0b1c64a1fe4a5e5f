"""Does a concurrent evaluation of a run's checkpoints slow the run?

A miniature trains on one core and saves checkpoints. On another core the command evaluates the
newest checkpoint of this run, and a checkpoint of a finished run. The second evaluation is the
peer: it uses the caches and the memory of the host in the same way, which a job on another node
does not. The two evaluations alternate every half second, and the other one is stopped, so that
other work on the host affects both. A pair is the median step of one interval and that of the
next interval, including steps that save. Exit status 1 unless the interval of the paired ratio
ends below 1.01: steps during an evaluation of the run are less than 1 % slower than steps
during the other evaluation.

    python -m benchmarks.training.concurrent_evaluation [PAIRS]
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.entry import run_script
from benchmarks.ratios import Ratio, paired_ratio, save_benchmark, to_interval
from command.arguments import ROOT
from components.run.history import read_lines
from tests.life.conftest import TINY

MOST_RATIO = 1.01
PAIRS, INTERVAL_SECONDS, TOKENS, SAVED_STEPS = 500, 0.5, 512, 20
OWN = {
    "budget.total_tokens": 1_000_000 * TOKENS,
    "checkpoint.every_tokens": SAVED_STEPS * TOKENS,
    "checkpoint.keep": 1_000,  # no checkpoint is removed while it is read
    "evaluation.every_tokens": 1_000_000 * TOKENS,
    "cluster.ranks": 1,
}
TRAIN_CORE, EVALUATION_CORE = 0, 1
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
TimeSpan = tuple[float, float]  # start and end


def pinned_command(core: int, *words: str) -> list[str]:
    """Return the command line of a run on one core."""
    return ["taskset", "-c", str(core), sys.executable, str(ROOT / "run.py"), *words]


def train_command(run: Path, **budget: int) -> list[str]:
    """Return the command line that trains the miniature on its core."""
    keys = {**OWN, **{f"budget.{key}": value for key, value in budget.items()}}
    words = [word for word in TINY if word.partition("=")[0] not in keys]
    words += [f"{key}={value}" for key, value in keys.items()]
    return pinned_command(TRAIN_CORE, *words, f"run={run}")


@contextmanager
def run_training(home: Path) -> Iterator[Path]:
    """Train in the background; the context starts after the first two checkpoints."""
    run = home / "run"
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            train_command(run), cwd=home, env=ENVIRONMENT, stdout=log, stderr=log
        )
        try:
            while len(list(run.glob("checkpoints/*/progress.json"))) < 2:
                if process.poll() is not None:
                    raise RuntimeError((home / "log").read_text("utf-8")[-2_000:])
                time.sleep(0.5)
            yield run
        finally:
            (run / "stop").touch()
            process.wait()


def start_evaluation(run: Path) -> subprocess.Popen[bytes]:
    """Start the evaluation of the newest checkpoint in a new process group."""
    checkpoint = sorted(run.glob("checkpoints/*/progress.json"))[-1].parent
    at_tokens = f"at_tokens={int(checkpoint.name.rpartition('-')[2])}"
    with (run.parent / "evaluations").open("ab") as log:
        return subprocess.Popen(
            pinned_command(EVALUATION_CORE, "action=evaluate", f"run={run}", at_tokens),
            cwd=run.parent, env=ENVIRONMENT, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def run_interval(process: subprocess.Popen[bytes]) -> TimeSpan | None:
    """Continue a process for an interval, then stop it; None if it has ended."""
    os.killpg(process.pid, signal.SIGCONT)
    start = time.time()
    time.sleep(INTERVAL_SECONDS)
    if process.poll() is not None:
        return None
    os.killpg(process.pid, signal.SIGSTOP)
    return start, time.time()


def alternate_evaluations(runs: Sequence[Path], pairs: int) -> list[tuple[TimeSpan, TimeSpan]]:
    """Alternate the evaluations of two runs; restart both when one of them ends."""
    intervals: list[tuple[TimeSpan, TimeSpan]] = []
    while len(intervals) < pairs:
        evaluations = [start_evaluation(run) for run in runs]
        try:
            os.killpg(evaluations[1].pid, signal.SIGSTOP)
            while (own := run_interval(evaluations[0])) and (
                other := run_interval(evaluations[1])
            ):
                intervals.append((own, other))
        finally:
            for process in evaluations:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if max(process.returncode for process in evaluations) > 0:
            raise RuntimeError((runs[0].parent / "evaluations").read_text("utf-8")[-2_000:])
    return intervals


def median_step(steps: Sequence[dict[str, Any]], start: float, end: float) -> float:
    """Return the median seconds of the steps that start and end in an interval."""
    inside = [s for s in steps if start < s["time"] - s["seconds"] < s["time"] < end]
    return median(float(step["seconds"]) for step in inside)


def main(words: list[str]) -> int:
    """Measure, and save the ratio, the seconds of steps and the load of the host."""
    pairs, load = int(words[0]) if words else PAIRS, os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="evaluation-") as name:
        finished = Path(name) / "finished"
        command = train_command(finished, total_tokens=2 * SAVED_STEPS * TOKENS)
        subprocess.run(command, cwd=name, env=ENVIRONMENT, check=True, capture_output=True)
        with run_training(Path(name)) as run:
            intervals = alternate_evaluations((run, finished), pairs)
        steps = [line for line in read_lines(run / "metrics.jsonl") if line["kind"] == "step"]
    own, other = ([median_step(steps, *pair[side]) for pair in intervals] for side in (0, 1))
    figures = {
        "pairs": len(intervals),
        # The 10th, 50th and 90th percentile.
        "step_seconds": {
            name: quantiles(seconds, n=10)[::4]
            for name, seconds in (("own", own), ("other", other))
        },
        "load_averages": [load, os.getloadavg()[0]],
    }
    ratio = Ratio(
        "a step next to its own evaluation",
        "the evaluation of another run",
        at_most=MOST_RATIO,
        judged="high",
        **to_interval(paired_ratio(own, other)),
    )
    return save_benchmark("concurrent_evaluation", OWN, figures, [ratio])


if __name__ == "__main__":
    run_script(main, max_words=1)
