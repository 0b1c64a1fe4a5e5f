"""Do bfloat16 weights with float32 masters learn as well as float32 weights?

Miniatures train for five hundred steps by the command, with bfloat16 products. The reference is
float32 weights with three seeds, whose losses have a spread. The first seed is repeated with
bfloat16 weights, float32 masters and sums, and as a counterexample with bfloat16 weights and
moments without masters. Exit status 1 if the held-out loss with masters differs from the
reference of the same seed by more than the spread.

    python -m benchmarks.training.masters RECIPE [RECIPE ...]
"""

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.entry import run_script
from benchmarks.results_store import RESULTS, ROOT, ResultRow, result_context, save_recipe_rows
from benchmarks.training.whole_run import train_by_command
from components.terminal import create_console

RESULT = RESULTS / "masters.json"
STEPS, GLOBAL_BATCH_TOKENS, EDGE = 500, 256, 50
SEEDS = (42, 43, 44)
SIZES = (
    *("shrink.dim=128", "shrink.num_layers=2"),
    *("shrink.padded_vocab_size=2048", "shrink.num_experts=4"),
)
FULL, MASTERS, ROUNDED = "float32 weights", "bfloat16, float32 masters", "bfloat16, no masters"
PRECISION = {
    FULL: ("precision.weights=float32",),
    MASTERS: ("precision.weights=bfloat16", "precision.master=float32"),
    ROUNDED: ("precision.weights=bfloat16", "precision.master=bfloat16"),
}


def words_of(recipe: str, scheme: Sequence[str], seed: int) -> list[str]:
    """Return the arguments of one run without its folder; ``scheme`` sets the precision."""
    return [
        *(f"recipe={recipe}", f"budget.seed={seed}", *(f"scale.{size}" for size in SIZES)),
        *("precision.compute=bfloat16", *scheme),
        *("budget.sequence_length=128", "parallelism.microbatch_sequences=1"),
        "evaluation.max_windows_per_source=8",
    ]


def train_miniature(words: Sequence[str], steps: int, batch: int) -> tuple[float, float]:
    """Train in a new process; return the mean loss of the last steps and the held-out loss.

    The run evaluates only at its start and its end. ``batch`` is the number of tokens a step.
    """
    tokens = steps * batch
    common = (
        *("scale=mini", "cluster.ranks=1", "budget.ramp_up=none"),
        *(f"budget.total_tokens={tokens}", f"budget.global_batch_tokens={batch}"),
        *(f"checkpoint.every_tokens={tokens}", f"evaluation.every_tokens={tokens}"),
        f"data.folder={ROOT / 'prepared'}",
    )
    with tempfile.TemporaryDirectory() as home:
        run = Path(home) / "run"
        _, lines = train_by_command([*words, *common], run, OMP_NUM_THREADS="1")
        held_out = json.loads((run / "results.json").read_text("utf-8"))["held_out"]
    losses = [line["loss"] for line in lines]
    assert len(losses) == steps
    return statistics.fmean(losses[-EDGE:]), held_out["final_unweighted"]


def row_of(recipe: str) -> ResultRow:
    """Train one miniature with every scheme; return the differences of held-out losses."""
    schemes = [*((FULL, seed) for seed in SEEDS), (MASTERS, SEEDS[0]), (ROUNDED, SEEDS[0])]
    losses = {
        (scheme, seed): train_miniature(
            words_of(recipe, PRECISION[scheme], seed), STEPS, GLOBAL_BATCH_TOKENS
        )
        for scheme, seed in schemes
    }
    held_out = [losses[FULL, seed][1] for seed in SEEDS]
    others = (MASTERS, ROUNDED)
    differences = {name: losses[name, SEEDS[0]][1] - held_out[0] for name in others}
    spread = max(held_out) - min(held_out)
    runs = [
        {"scheme": scheme, "seed": seed, "loss": loss, "held_out": held_out_loss}
        for (scheme, seed), (loss, held_out_loss) in losses.items()
    ]
    within = {scheme: abs(value) <= spread for scheme, value in differences.items()}
    row = {"recipe": recipe, "runs": runs, "spread": spread}
    return row | {"differences": differences, "within": within}


def main(words: Sequence[str]) -> int:
    """Train the miniatures; save and print the rows."""
    context = result_context(
        peer="the same run with float32 weights and three seeds",
        convention=f"{STEPS} steps of {GLOBAL_BATCH_TOKENS} tokens, products in bfloat16, sums "
        "in float32; nats per token; held-out loss as a plain mean over sources; spread: "
        "largest minus smallest held-out loss of the seeds; differences: a scheme minus "
        "float32 weights with the same seed",
        shape={"steps": STEPS, "tokens": GLOBAL_BATCH_TOKENS, "smaller": list(SIZES)},
    )
    rows = []
    for recipe in words:
        rows.append(row_of(recipe))
        save_recipe_rows(RESULT, context, rows)
    create_console().print_json(data=rows)
    return int(not all(row["within"][MASTERS] for row in rows))


if __name__ == "__main__":
    run_script(main, min_words=1)
