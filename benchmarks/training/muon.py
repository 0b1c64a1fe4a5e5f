"""Does Muon reach a lower loss than AdamW on the same tokens, each at its best rate?

Miniatures train by the command. Each optimizer has one run per rate with the first seed, and
two more seeds at the rate with the lowest held-out loss. Batches have many sequences, because
with a few hundred tokens per step the gradient noise hides the effect of the optimizer.

    python -m benchmarks.training.muon RECIPE [RECIPE ...]
"""

import statistics
from collections.abc import Sequence
from functools import cache

from benchmarks.entry import run_script
from benchmarks.results_store import RESULTS, ResultRow, result_context, save_recipe_rows
from benchmarks.training.masters import SEEDS, train_miniature
from components.terminal import create_console

RESULT = RESULTS / "muon.json"
OPTIMIZERS = ("adamw", "muon")
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
STEPS, SEQUENCE_LENGTH, BATCH_SEQUENCES = 200, 256, 16
BATCH = SEQUENCE_LENGTH * BATCH_SEQUENCES
WARMUP_STEPS, DECAY_STEPS = 10, 60
SIZES = ("shrink.dim=128", "shrink.padded_vocab_size=2048")


def words_of(recipe: str, optimizer: str, rate: float, seed: int) -> list[str]:
    """Return the arguments of one run without its folder."""
    return [
        *(f"recipe={recipe}", f"budget.seed={seed}", *(f"scale.{size}" for size in SIZES)),
        "precision.compute=float32",
        *(f"optimizer={optimizer}", f"optimizer.lr={rate}", "schedule=wsd"),
        f"schedule.total_tokens={STEPS * BATCH}",
        f"schedule.warmup_tokens={WARMUP_STEPS * BATCH}",
        f"schedule.decay_tokens={DECAY_STEPS * BATCH}",
        f"budget.sequence_length={SEQUENCE_LENGTH}",
        f"parallelism.microbatch_sequences={BATCH_SEQUENCES}",
        "evaluation.max_windows_per_source=64",
    ]


def row_of(recipe: str) -> ResultRow:
    """Find the best rate of each optimizer with the first seed, then train all seeds."""

    @cache
    def loss(optimizer: str, rate: float, seed: int) -> float:
        return train_miniature(words_of(recipe, optimizer, rate, seed), STEPS, BATCH)[1]

    by_rate = {
        name: {f"{rate:g}": loss(name, rate, SEEDS[0]) for rate in RATES} for name in OPTIMIZERS
    }
    best = {name: float(min(rates, key=rates.__getitem__)) for name, rates in by_rate.items()}
    held_out = {name: [loss(name, best[name], seed) for seed in SEEDS] for name in OPTIMIZERS}
    mean = {name: statistics.fmean(losses) for name, losses in held_out.items()}
    spread = {name: max(losses) - min(losses) for name, losses in held_out.items()}
    adamw, muon = (held_out[name] for name in OPTIMIZERS)
    return {
        "recipe": recipe,
        "by_rate": by_rate,
        "best_rate": best,
        "held_out": held_out,
        "mean": mean,
        "spread": spread,
        "muon_wins": sum(ours < theirs for theirs, ours in zip(adamw, muon, strict=True)),
    }


def main(words: Sequence[str]) -> int:
    """Train; save and print the rows. Exit status 1 if AdamW wins with any seed."""
    context = result_context(
        peer="AdamW at its best rate, with the same tokens and seeds",
        convention=f"{STEPS} steps of {BATCH} tokens in float32, {WARMUP_STEPS} of warm-up and "
        f"the last {DECAY_STEPS} of decay; held-out loss as a plain mean over sources, nats "
        "per token, of each seed at the best rate of the first seed; spread: largest minus "
        "smallest; muon_wins: number of seeds with a lower loss for Muon",
        shape={"steps": STEPS, "tokens": BATCH, "smaller": list(SIZES), "rates": list(RATES)},
    )
    rows = []
    for recipe in words:
        rows.append(row_of(recipe))
        save_recipe_rows(RESULT, context | {"seeds": list(SEEDS)}, rows)
    create_console().print_json(data=rows)
    return int(any(row["muon_wins"] < len(SEEDS) for row in rows))


if __name__ == "__main__":
    run_script(main, min_words=1)
