"""Do weights in bfloat16 with float32 masters learn what float32 weights do?

Five hundred steps of miniatures through the real command, products in bfloat16 in all of
them: weights in float32 from three seeds, whose losses' spread is the measure; then from the
first seed weights in bfloat16 with masters and sums in float32, and as a counterexample weights
and moments in bfloat16 without masters. Exit status 1 if with masters the held-out loss is
farther from that of the same seed than seeds are from each other.

    python -m benchmarks.training.masters RECIPE [RECIPE ...]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, ROOT, Row, circumstances, keep_recipes
from components.terminal import console

RESULT = RESULTS / "masters.json"
STEPS, GLOBAL_BATCH_TOKENS, EDGE = 500, 256, 50
SEEDS = (42, 43, 44)
SIZES = (
    *("shrink.dim=128", "shrink.num_layers=2"),
    *("shrink.padded_vocab_size=2048", "shrink.num_experts=4"),
)
EVEN, MASTERS, ROUNDED = "float32 weights", "bfloat16, float32 masters", "bfloat16, no masters"
PRECISION = {
    EVEN: ("precision.weights=float32",),
    MASTERS: ("precision.weights=bfloat16", "precision.master=float32"),
    ROUNDED: ("precision.weights=bfloat16", "precision.master=bfloat16"),
}


def words_of(recipe: str, scheme: Sequence[str], seed: int) -> list[str]:
    """Write the command of one run but for its folder; ``scheme``: in what runs differ."""
    tokens = STEPS * GLOBAL_BATCH_TOKENS
    return [
        *(f"recipe={recipe}", "scale=mini", f"budget.seed={seed}"),
        *(f"scale.{size}" for size in SIZES),
        *("cluster.ranks=1", "precision.compute=bfloat16", *scheme),
        *(f"budget.total_tokens={tokens}", f"budget.global_batch_tokens={GLOBAL_BATCH_TOKENS}"),
        *("budget.sequence_length=128", "budget.ramp_up=none"),
        "parallelism.microbatch_sequences=1",
        *(f"checkpoint.every_tokens={tokens}", f"evaluation.every_tokens={tokens}"),
        *("evaluation.max_windows_per_source=8", f"data.folder={ROOT / 'prepared'}"),
    ]


def train(words: Sequence[str], steps: int) -> tuple[float, float]:
    """Train in a process of its own; return the last steps' mean loss, and the held-out one."""
    with tempfile.TemporaryDirectory() as home:
        run = Path(home) / "run"
        program = [sys.executable, str(ROOT / "run.py"), *words, f"run={run}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(
            program, cwd=home, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        lines = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
        losses = [line["loss"] for line in lines if line["kind"] == "step"]
        held_out = json.loads((run / "results.json").read_text("utf-8"))["held_out"]
    assert len(losses) == steps
    return statistics.fmean(losses[-EDGE:]), held_out["final_unweighted"]


def row_of(recipe: str) -> Row:
    """Train one miniature by every scheme, and say how far the schemes are apart."""
    asked = [*((EVEN, seed) for seed in SEEDS), (MASTERS, SEEDS[0]), (ROUNDED, SEEDS[0])]
    ends = {
        (scheme, seed): train(words_of(recipe, PRECISION[scheme], seed), STEPS)
        for scheme, seed in asked
    }
    held_out = [ends[EVEN, seed][1] for seed in SEEDS]
    apart = {scheme: ends[scheme, SEEDS[0]][1] - held_out[0] for scheme in (MASTERS, ROUNDED)}
    spread = max(held_out) - min(held_out)
    runs = [
        {"scheme": scheme, "seed": seed, "loss": loss, "held_out": outside}
        for (scheme, seed), (loss, outside) in ends.items()
    ]
    within = {scheme: abs(one) <= spread for scheme, one in apart.items()}
    return {"recipe": recipe, "runs": runs, "spread": spread, "apart": apart, "within": within}


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print what was found."""
    heads = ("recipe", "weights", "seed", f"last {EDGE} steps", "held out", "apart", "spread")
    title = f"losses after {STEPS} steps, nats a token; apart: from the same seed"
    table = Table(*heads, title=title)
    for row in rows:
        for run in row["runs"]:
            apart = row["apart"].get(run["scheme"])
            table.add_row(
                *(row["recipe"], run["scheme"], str(run["seed"])),
                *(f"{run['loss']:.4f}", f"{run['held_out']:.4f}"),
                "" if apart is None else f"{apart:+.4f}",
                f"{row['spread']:.4f}",
            )
    console(width=120).print(table)


def keep(rows: Sequence[Row]) -> None:
    """Put what was found beside what is kept of other recipes."""
    context = circumstances(
        peer="the same run with weights in float32, from three seeds",
        convention=f"{STEPS} steps of {GLOBAL_BATCH_TOKENS} tokens, products in bfloat16, sums "
        "in float32; nats a token; held-out loss as a plain mean over sources; spread: the "
        "largest less the smallest held-out loss of seeds; apart: of a scheme less that of "
        "float32 weights from the same seed",
        shape={"steps": STEPS, "tokens": GLOBAL_BATCH_TOKENS, "smaller": list(SIZES)},
    )
    keep_recipes(RESULT, context, rows)


def main(words: Sequence[str]) -> int:
    """Train, print the table, keep the result."""
    rows = []
    for recipe in words:
        rows.append(row_of(recipe))
        keep(rows)
    show(rows)
    return int(not all(row["within"][MASTERS] for row in rows))


if __name__ == "__main__":
    enter(main, least=1)
