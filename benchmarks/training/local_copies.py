"""How fast does a run recover from a lost rank, with and without local copies?

A miniature with 126 MB of weights and moments trains for 16 steps on two gloo ranks and saves
every 8 steps. A rank is killed before step 15, so without local copies 6 steps are repeated.
With local copies each rank copies its state to the memory of the host after each step. Runs of
both kinds alternate; their last weights must be bit-identical. The result has medians over the
rounds. The file system is a local disk; local copies are meant for shared file systems.

    python -m benchmarks.training.local_copies [ROUNDS]
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.chaos.cases import LOCAL_COPIES
from benchmarks.chaos.runs import (
    OWN,
    Runs,
    are_equal,
    preloaded_ranks,
    recovery_seconds,
    seconds_to_step,
    steps_of,
)
from benchmarks.entry import run_script
from benchmarks.results_store import RESULTS, run_environment, save_tree
from components.run.history import read_lines

RESULT = RESULTS / "local_copies.json"
ROUNDS, STEPS, SAVED_STEPS, KILL_STEP, TOKENS = 3, 16, 8, 15, 512
SHAPE = {
    "model.dim": 512,
    "model.num_layers": 4,
    "model.attention.head_dim": 64,
    "model.mlp.ffn_dim": 1_024,
    "budget.total_tokens": STEPS * TOKENS,
    "checkpoint.every_tokens": SAVED_STEPS * TOKENS,
    "evaluation.every_tokens": STEPS * TOKENS,
    "cluster.ranks": 2,
    "parallelism.zero": 1,
    "watchdog.step_seconds": 120.0,
    "watchdog.replicas_every_steps": "never",
}
KINDS = {"checkpoints": (), "local": (LOCAL_COPIES,)}
KILL = f"guard.inject=[{{fault: kill, rank: 1, step: {KILL_STEP}}}]"


def measure_recovery(runs: Runs, run: Path, words: Sequence[str]) -> dict[str, Any]:
    """Train a run with a killed rank; return its recovery times."""
    if status := runs.start(run, [*words, KILL]):
        raise RuntimeError(f"{run}: exit status {status}")
    events = read_lines(run / "events.jsonl")
    (resume,) = (event for event in events if event["kind"] == "resume")
    steps = [step["seconds"] for step in steps_of(run) if 1 < step["step"] < KILL_STEP]
    return {
        "source": resume["evidence"]["source"],
        "steps_again": KILL_STEP - 1 - resume["step"],
        "load_seconds": resume["evidence"]["load_seconds"],
        "seconds_to_any_step": recovery_seconds(run, events),
        "seconds_to_its_step": seconds_to_step(run, events),
        "step_seconds": median(steps),
    }


def main(words: list[str]) -> int:
    """Run all rounds, and save medians and rows."""
    rounds = int(words[0]) if words else ROUNDS
    console = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="local-") as name,
        preloaded_ranks(Path(f"{name}.log")),
    ):
        runs = Runs(Path(name), OWN | SHAPE)
        for number in range(rounds):
            for kind, arguments in KINDS.items():
                run = Path(name) / f"{kind}-{number}"
                rows.append(measure_recovery(runs, run, arguments))
                console.write(f"{rows[-1]}\n")
                if not are_equal(run, Path(name) / "checkpoints-0"):
                    raise RuntimeError(f"{kind}: the last weights differ")
    keys = [key for key in rows[0] if key != "source"]
    medians = {
        kind: {key: median(row[key] for row in rows if row["source"] == kind) for key in keys}
        for kind in KINDS
    }
    tree = {"medians": medians, "rows": rows, "shape": SHAPE}
    save_tree(RESULT, tree | run_environment(["torch"]))
    console.write(f"{json.dumps(medians, indent=1)}\n")
    return 0


if __name__ == "__main__":
    run_script(main, max_words=1)
