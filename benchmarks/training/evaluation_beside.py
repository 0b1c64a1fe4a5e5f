"""What do evaluations in jobs of their own cost the run whose checkpoints they read?

A miniature trains by the command on one core and saves again and again; on another core the
command evaluates its newest checkpoint, as a node of a tree does, and then as long nothing runs
there: both kinds of steps take turns in one run. Each pair is the median step of a turn beside
that of the rest after it; steps that saved count, for both kinds have them. The claim is that
the interval of the paired ratio ends below 1.01; status 1 where it does not. Cores share memory
and caches, which nodes of a cluster do not: what is found here is an upper bound. Other work on
the host widens the interval; its load is kept with the result.

    python -m benchmarks.training.evaluation_beside [PAIRS]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, circumstances
from benchmarks.paired import paired_ratio
from command.arguments import ROOT
from components.run.history import read_lines
from tests.life.conftest import TINY

RESULT = RESULTS / "evaluation_beside.json"
PAIRS, TOKENS, SAVED_STEPS, MOST = 8, 512, 20, 1.01
OWN = {
    "budget.total_tokens": 1_000_000 * TOKENS,
    "checkpoint.every_tokens": SAVED_STEPS * TOKENS,
    "checkpoint.keep": 1_000,  # none goes while it is read
    "evaluation.every_tokens": 1_000_000 * TOKENS,
    "cluster.ranks": 1,
}
TRAINS, EVALUATES = 0, 1  # cores


def command(core: int, *words: str) -> list[str]:
    """Write the command that runs on one core."""
    return ["taskset", "-c", str(core), sys.executable, str(ROOT / "run.py"), *words]


@contextmanager
def training(home: Path) -> Iterator[Path]:
    """Train until the turns are over, from after the first two checkpoints on."""
    run, told = home / "run", {word.partition("=")[0] for word in TINY} & {*OWN}
    words = [word for word in TINY if word.partition("=")[0] not in told]
    words += [f"{key}={value}" for key, value in OWN.items()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            command(TRAINS, *words, f"run={run}"),
            cwd=home, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            while len(list(run.glob("checkpoints/*/progress.json"))) < 2:
                if process.poll() is not None:
                    raise RuntimeError((home / "log").read_text("utf-8")[-2_000:])
                time.sleep(0.5)
            yield run
        finally:
            (run / "stop").touch()
            process.wait()


def turn(run: Path) -> tuple[float, float, float]:
    """Evaluate the newest checkpoint, rest as long; return begin, end and end of the rest."""
    saved = sorted(run.glob("checkpoints/*/progress.json"))[-1].parent
    asked = f"at_tokens={int(saved.name.rpartition('-')[2])}"
    began = time.time()
    subprocess.run(
        command(EVALUATES, "action=evaluate", f"run={run}", asked),
        cwd=run.parent, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True,
        capture_output=True,
    )  # fmt: skip
    ended = time.time()
    time.sleep(ended - began)
    return began, ended, time.time()


def step_between(steps: Sequence[dict[str, Any]], begin: float, end: float) -> float:
    """Return the median seconds of the steps that lie between two moments whole."""
    inside = [one for one in steps if begin < one["time"] - one["seconds"] < one["time"] < end]
    return median(float(one["seconds"]) for one in inside)


def main(words: list[str]) -> int:
    """Take turns, and keep the ratio, the medians of the pairs and the load of the host."""
    pairs, loads = int(words[0]) if words else PAIRS, [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="beside-") as name:
        turns = []
        with training(Path(name)) as run:
            for _ in range(pairs):
                turns.append(turn(run))
                loads.append(os.getloadavg()[0])
        steps = [one for one in read_lines(run / "metrics.jsonl") if one["kind"] == "step"]
    beside = [step_between(steps, began, ended) for began, ended, _ in turns]
    alone = [step_between(steps, ended, rested) for _, ended, rested in turns]
    ratio = paired_ratio(beside, alone)
    tree = {
        "ratio": ratio,
        "step_seconds": {"beside": beside, "alone": alone},
        "evaluation_seconds": [ended - began for began, ended, _ in turns],
        "load_averages": loads,
        "holds": ratio["high"] < MOST,
    }
    said = circumstances(
        peer="the same run while nothing is evaluated",
        convention="median seconds of a step, of turns of one run; processes on a core each",
        shape=OWN,
        packages=["torch"],
    )
    RESULT.write_text(json.dumps(tree | said, indent=1) + "\n", "utf-8")
    sys.stdout.write(f"{json.dumps(tree, indent=1)}\n")
    return 0 if tree["holds"] else 1


if __name__ == "__main__":
    enter(main, most=1)
