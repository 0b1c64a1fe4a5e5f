"""What do evaluations in jobs of their own cost the run whose checkpoints they read?

A miniature trains by the command on one core and saves again and again; on another core the
command evaluates its newest checkpoint, as a node of a tree does, and beside it the checkpoint
of a run that ended: that costs what any neighbour on the same host costs, in caches and memory,
which a job on another node does not. Of the two evaluations one is halted at a time, for half a
second, so that steps beside the one and the other take short turns in one run, and what else
goes on on the host slows both. Each pair is the median step of a turn beside that of the next;
steps that saved count, for all have them. The claim is that steps beside an evaluation of their
own run are not 1 % slower than beside the other: the interval of the paired ratio ends below
1.01, status 1 where it does not.

    python -m benchmarks.training.evaluation_beside [PAIRS]
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

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.ratios import Ratio, interval, keep_result, paired_ratio
from command.arguments import ROOT
from components.run.history import read_lines
from tests.life.conftest import TINY

MOST_BESIDE = 1.01
PAIRS, TURN_SECONDS, TOKENS, SAVED_STEPS = 500, 0.5, 512, 20
OWN = {
    "budget.total_tokens": 1_000_000 * TOKENS,
    "checkpoint.every_tokens": SAVED_STEPS * TOKENS,
    "checkpoint.keep": 1_000,  # none goes while it is read
    "evaluation.every_tokens": 1_000_000 * TOKENS,
    "cluster.ranks": 1,
}
TRAINS, EVALUATES = 0, 1  # cores
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
Turn = tuple[float, float]  # begin and end


def command(core: int, *words: str) -> list[str]:
    """Write the command that runs on one core."""
    return ["taskset", "-c", str(core), sys.executable, str(ROOT / "run.py"), *words]


def train_words(run: Path, **own: int) -> list[str]:
    """Write the command that trains the miniature on its core."""
    keys = {**OWN, **{f"budget.{key}": value for key, value in own.items()}}
    words = [word for word in TINY if word.partition("=")[0] not in keys]
    words += [f"{key}={value}" for key, value in keys.items()]
    return command(TRAINS, *words, f"run={run}")


@contextmanager
def training(home: Path) -> Iterator[Path]:
    """Train until the turns are over, from after the first two checkpoints on."""
    run = home / "run"
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            train_words(run), cwd=home, env=ENVIRONMENT, stdout=log, stderr=log
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


def ended_run(home: Path) -> Path:
    """Train a run of two checkpoints to its end."""
    run = home / "ended"
    words = train_words(run, total_tokens=2 * SAVED_STEPS * TOKENS)
    subprocess.run(words, cwd=home, env=ENVIRONMENT, check=True, capture_output=True)
    return run


def evaluate(run: Path) -> subprocess.Popen[bytes]:
    """Begin to evaluate the newest checkpoint by the command, in a group of processes."""
    saved = sorted(run.glob("checkpoints/*/progress.json"))[-1].parent
    asked = f"at_tokens={int(saved.name.rpartition('-')[2])}"
    with (run.parent / "evaluations").open("ab") as log:
        return subprocess.Popen(
            command(EVALUATES, "action=evaluate", f"run={run}", asked),
            cwd=run.parent, env=ENVIRONMENT, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def turn(process: subprocess.Popen[bytes]) -> Turn | None:
    """Let it work for a moment and halt it; None if it ended meanwhile."""
    os.killpg(process.pid, signal.SIGCONT)
    began = time.time()
    time.sleep(TURN_SECONDS)
    if process.poll() is not None:
        return None
    os.killpg(process.pid, signal.SIGSTOP)
    return began, time.time()


def take_turns(runs: Sequence[Path], pairs: int) -> list[tuple[Turn, Turn]]:
    """Evaluate two runs in turns, begun anew together when one has been evaluated."""
    turns: list[tuple[Turn, Turn]] = []
    while len(turns) < pairs:
        both = [evaluate(run) for run in runs]
        try:
            os.killpg(both[1].pid, signal.SIGSTOP)
            while (one := turn(both[0])) and (other := turn(both[1])):
                turns.append((one, other))
        finally:
            for process in both:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if max(process.returncode for process in both) > 0:
            raise RuntimeError((runs[0].parent / "evaluations").read_text("utf-8")[-2_000:])
    return turns


def step_between(steps: Sequence[dict[str, Any]], begin: float, end: float) -> float:
    """Return the median seconds of the steps that lie between two moments whole."""
    inside = [one for one in steps if begin < one["time"] - one["seconds"] < one["time"] < end]
    return median(float(one["seconds"]) for one in inside)


def tenths(seconds: Sequence[float]) -> list[float]:
    """Return the 10th, 50th and 90th percentile."""
    return [quantiles(seconds, n=10)[place] for place in (0, 4, 8)]


def main(words: list[str]) -> int:
    """Take turns, and keep the ratio, the steps' seconds and the load of the host."""
    pairs, load = int(words[0]) if words else PAIRS, os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="beside-") as name:
        ended = ended_run(Path(name))
        with training(Path(name)) as run:
            turns = take_turns((run, ended), pairs)
        steps = [one for one in read_lines(run / "metrics.jsonl") if one["kind"] == "step"]
    own, other = ([step_between(steps, *one[place]) for one in turns] for place in (0, 1))
    tree = {
        "pairs": len(turns),
        "step_seconds": {"own": tenths(own), "other": tenths(other)},
        "load_averages": [load, os.getloadavg()[0]],
    }
    context = circumstances(
        peer="the same run beside an evaluation of a run that has ended",
        convention="median seconds of a step, of turns of half a second in one run; processes "
        "on a core each; of the turns the 10th, 50th and 90th percentile",
        shape=OWN,
        packages=["torch"],
    )
    ratio = Ratio(
        "a step next to its own evaluation",
        "the evaluation of another run",
        at_most=MOST_BESIDE,
        judged="high",
        **interval(paired_ratio(own, other)),
    )
    return keep_result("evaluation_beside", tree | context, [ratio])


if __name__ == "__main__":
    enter(main, most=1)
