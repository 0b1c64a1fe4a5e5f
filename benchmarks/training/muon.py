"""Does Muon learn more of the same tokens than AdamW, at AdamW's rate?

Miniatures through the real command, as `benchmarks.training.masters` trains them, from three
seeds by each optimizer. Both have the recipe's rate, which neither was tuned for.

    python -m benchmarks.training.muon RECIPE [RECIPE ...]
"""

import json
import statistics
from collections.abc import Sequence

from rich.table import Table

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, Row, circumstances, read_rows
from benchmarks.training.masters import GLOBAL_BATCH_TOKENS, SEEDS, SIZES, STEPS, train
from components.terminal import console

RESULT = RESULTS / "muon.json"
OPTIMIZERS = ("adamw", "muon")


def row_of(recipe: str) -> Row:
    """Train one miniature by both optimizers from every seed."""
    held_out = {
        name: [train(recipe, (f"optimizer={name}",), seed)[1] for seed in SEEDS]
        for name in OPTIMIZERS
    }
    mean = {name: statistics.fmean(losses) for name, losses in held_out.items()}
    spread = {name: max(losses) - min(losses) for name, losses in held_out.items()}
    return {"recipe": recipe, "held_out": held_out, "mean": mean, "spread": spread}


def keep(rows: Sequence[Row]) -> None:
    """Put what was found beside what is kept of other recipes."""
    named = {row["recipe"]: row for row in [*read_rows(RESULT), *rows]}
    said = circumstances(
        peer="AdamW at the same rate, on the same tokens from the same seeds",
        convention=f"{STEPS} steps of {GLOBAL_BATCH_TOKENS} tokens, products in bfloat16; "
        "held-out loss as a plain mean over sources, nats a token, of each seed in turn; "
        "spread: the largest less the smallest",
        shape={"steps": STEPS, "tokens": GLOBAL_BATCH_TOKENS, "smaller": list(SIZES)},
        packages=("torch", "lightning"),
    )
    tree = said | {"seeds": list(SEEDS), "rows": list(named.values())}
    RESULT.write_text(json.dumps(tree, indent=1) + "\n", "utf-8")


def main(words: Sequence[str]) -> int:
    """Train, print the table, keep the result."""
    table = Table(title=f"held-out loss after {STEPS} steps, nats a token")
    for head in ("recipe", "optimizer", "mean", "spread"):
        table.add_column(head, justify="right")
    rows = []
    for recipe in words:
        rows.append(row_of(recipe))
        keep(rows)
        for name in OPTIMIZERS:
            figures = (f"{rows[-1][key][name]:.4f}" for key in ("mean", "spread"))
            table.add_row(recipe, name, *figures)
    console(width=80).print(table)
    return 0


if __name__ == "__main__":
    enter(main, least=1)
