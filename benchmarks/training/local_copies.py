"""How soon does a run go on that lost a rank, with local copies and without?

A miniature of 126 MB of weights and moments trains on two gloo ranks and saves every 8 of 16
steps. A rank is killed before step 15: without local copies 6 steps are computed again. With
them, each rank copies its state after each step into the memory of the host. Runs of both kinds
take turns; the medians over the rounds are kept, and both kinds must end bit for bit alike.
The file system is a local disk: a shared one of thousands of readers is what copies are for.

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
    ranks_at_hand,
    seconds_to_go_on,
    seconds_to_step,
    steps_of,
)
from benchmarks.entry import enter
from benchmarks.kept import RESULTS, here_and_now
from components.run.history import read_lines

RESULT = RESULTS / "local_copies.json"
ROUNDS, STEPS, SAVED_STEPS, STRUCK, TOKENS = 3, 16, 8, 15, 512
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
KILL = f"guard.inject=[{{fault: kill, rank: 1, step: {STRUCK}}}]"


def measure(runs: Runs, run: Path, words: Sequence[str]) -> dict[str, Any]:
    """Let one run be struck, and say how it went on."""
    if status := runs.begin(run, [*words, KILL]):
        raise RuntimeError(f"{run}: exit status {status}")
    events = read_lines(run / "journal.jsonl")
    (resume,) = (one for one in events if one["kind"] == "resume")
    before = [one["seconds"] for one in steps_of(run) if 1 < one["step"] < STRUCK]
    return {
        "source": resume["evidence"]["source"],
        "steps_again": STRUCK - 1 - resume["step"],
        "load_seconds": resume["evidence"]["load_seconds"],
        "seconds_to_any_step": seconds_to_go_on(run, events),
        "seconds_to_its_step": seconds_to_step(run, events),
        "step_seconds": median(before),
    }


def main(words: list[str]) -> int:
    """Run all rounds, and keep medians and rows."""
    rounds = int(words[0]) if words else ROUNDS
    told = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="local-") as name,
        ranks_at_hand(Path(f"{name}.log")),
    ):
        runs = Runs(Path(name), OWN | SHAPE)
        for number in range(rounds):
            for kind, more in KINDS.items():
                run = Path(name) / f"{kind}-{number}"
                rows.append(measure(runs, run, more))
                told.write(f"{rows[-1]}\n")
                if not are_equal(run, Path(name) / "checkpoints-0"):
                    raise RuntimeError(f"{kind}: the last weights differ")
    keys = [key for key in rows[0] if key != "source"]
    medians = {
        kind: {key: median(row[key] for row in rows if row["source"] == kind) for key in keys}
        for kind in KINDS
    }
    tree = {"medians": medians, "rows": rows, "shape": SHAPE}
    RESULT.write_text(json.dumps(tree | here_and_now(["torch"]), indent=1) + "\n", "utf-8")
    told.write(f"{json.dumps(medians, indent=1)}\n")
    return 0


if __name__ == "__main__":
    enter(main, most=1)
