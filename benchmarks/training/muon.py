"""Does Muon learn more of the same tokens than AdamW, each at its best rate?

Miniatures through the real command: by each optimizer one run a rate from the first seed, and
from two more seeds at the rate that left the least held-out loss. Batches are of many
sequences: on a few hundred tokens a step the gradient's noise hides what an optimizer does.

    python -m benchmarks.training.muon RECIPE [RECIPE ...]
"""

import statistics
from collections.abc import Sequence
from functools import cache

from rich.table import Table

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, ROOT, Row, circumstances, keep_recipes
from benchmarks.training.masters import SEEDS, train
from components.terminal import console

RESULT = RESULTS / "muon.json"
OPTIMIZERS = ("adamw", "muon")
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
STEPS, SEQUENCE_LENGTH, BATCH_SEQUENCES = 200, 256, 16
WARMUP_STEPS, DECAY_STEPS = 10, 60
SIZES = ("shrink.dim=128", "shrink.padded_vocab_size=2048")


def words_of(recipe: str, optimizer: str, rate: float, seed: int) -> list[str]:
    """Write the command of one run but for its folder."""
    batch = SEQUENCE_LENGTH * BATCH_SEQUENCES
    tokens = STEPS * batch
    return [
        *(f"recipe={recipe}", "scale=mini", f"budget.seed={seed}"),
        *(f"scale.{size}" for size in SIZES),
        *("cluster.ranks=1", "precision.compute=float32"),
        *(f"optimizer={optimizer}", f"optimizer.lr={rate}", "schedule=wsd"),
        *(f"schedule.total_tokens={tokens}", f"schedule.warmup_tokens={WARMUP_STEPS * batch}"),
        f"schedule.decay_tokens={DECAY_STEPS * batch}",
        *(f"budget.total_tokens={tokens}", f"budget.global_batch_tokens={batch}"),
        *(f"budget.sequence_length={SEQUENCE_LENGTH}", "budget.ramp_up=none"),
        f"parallelism.microbatch_sequences={BATCH_SEQUENCES}",
        *(f"checkpoint.every_tokens={tokens}", f"evaluation.every_tokens={tokens}"),
        *("evaluation.max_windows_per_source=64", f"data.folder={ROOT / 'prepared'}"),
    ]


def row_of(recipe: str) -> Row:
    """Find each optimizer's rate from the first seed, then train from every seed at it."""

    @cache
    def loss(optimizer: str, rate: float, seed: int) -> float:
        return train(words_of(recipe, optimizer, rate, seed), STEPS)[1]

    by_rate = {
        name: {f"{rate:g}": loss(name, rate, SEEDS[0]) for rate in RATES} for name in OPTIMIZERS
    }
    best = {name: float(min(found, key=found.__getitem__)) for name, found in by_rate.items()}
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


def keep(rows: Sequence[Row]) -> None:
    """Put what was found beside what is kept of other recipes."""
    batch = SEQUENCE_LENGTH * BATCH_SEQUENCES
    context = circumstances(
        peer="AdamW at its own best rate, on the same tokens from the same seeds",
        convention=f"{STEPS} steps of {batch} tokens in float32, {WARMUP_STEPS} of warm-up and "
        f"the last {DECAY_STEPS} of decay; held-out loss as a plain mean over sources, nats a "
        "token, of each seed in turn at the rate that was best from the first; spread: the "
        "largest less the smallest; muon_wins: seeds of which Muon's loss is lower",
        shape={"steps": STEPS, "tokens": batch, "smaller": list(SIZES), "rates": list(RATES)},
    )
    keep_recipes(RESULT, context | {"seeds": list(SEEDS)}, rows)


def main(words: Sequence[str]) -> int:
    """Train, print the table, keep the result; exit status 1 if AdamW wins from any seed."""
    title = f"held-out loss after {STEPS} steps, nats a token"
    table = Table("recipe", "optimizer", "rate", "mean", "spread", title=title)
    rows = []
    for recipe in words:
        rows.append(row_of(recipe))
        keep(rows)
        for name in OPTIMIZERS:
            figures = (f"{rows[-1][key][name]:.4f}" for key in ("best_rate", "mean", "spread"))
            table.add_row(recipe, name, *figures)
    console(width=80).print(table)
    return int(any(row["muon_wins"] < len(SEEDS) for row in rows))


if __name__ == "__main__":
    enter(main, least=1)
