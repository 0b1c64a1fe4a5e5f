"""Does the miniature of every recipe learn? A hundred steps on the embedded text.

    python -m benchmarks.ledger.miniatures [RECIPE ...]

With names, only these recipes are trained; the other recipes keep their rows. Exit status 1 if
the held-out loss of a miniature does not fall, or if the mean loss of its last ten steps is not
below the mean of its first ten. For a recipe that starts from a checkpoint only the held-out
loss counts. Losses of different recipes are not comparable, because their tokenizers differ.
"""

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.entry import run_script
from benchmarks.ledger import ledger
from benchmarks.ledger.proofs import FILES, MINIATURE
from benchmarks.program import run_program
from benchmarks.recipes import published_recipes
from benchmarks.results_store import ROOT, ResultRow, save_rows, stamp_row
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.run.history import read_lines
from components.terminal import create_console

RESULT = FILES[MINIATURE]
STEPS, GLOBAL_BATCH_TOKENS, EDGE = 100, 1_024, 10
CONVENTION = (
    f"{STEPS} steps of {GLOBAL_BATCH_TOKENS} tokens; nats per token; means over the first and "
    f"the last {EDGE} steps; held-out loss over all sources"
)


def train_miniature(recipe: str, home: Path) -> ResultRow:
    """Train one miniature in a new process and read its losses."""
    run = home / recipe
    scaled = compose_recipe(read_point([f"recipe={recipe}", "scale=mini"]))
    row = {"recipe": recipe} | stamp_row(scaled, KeyGroup.MATHEMATICS)
    tokens = STEPS * GLOBAL_BATCH_TOKENS
    # A run that continues with its parent's optimizer counts the parent's tokens too.
    continues = scaled.start is not None and scaled.start.goes_on
    words = (
        f"recipe={recipe}",
        f"run={run}",
        f"budget.global_batch_tokens={GLOBAL_BATCH_TOKENS}",
        f"budget.total_tokens={2 * tokens if continues else tokens}",
        "budget.ramp_up=none",
        f"checkpoint.every_tokens={tokens}",
        f"evaluation.every_tokens={tokens}",
        "evaluation.max_windows_per_source=8",
        f"data.folder={ROOT / 'prepared'}",
        *parent_words(scaled, home),
    )
    if not (run / "results.json").exists():  # else already trained as a parent
        try:
            run_program(*words, home=home)
        except RuntimeError as error:
            return row | {"falls": False, "error": str(error)[-2_000:]}
    lines = read_lines(run / "metrics.jsonl")
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    held_out = read_held_out(run)
    first_loss = held_out["first_unweighted"]
    if first_loss is None:  # a run that continues an optimizer starts at its parent's last loss
        assert scaled.start is not None
        first_loss = read_held_out(home / str(scaled.start.recipe))["final_unweighted"]
    first, last = statistics.fmean(losses[:EDGE]), statistics.fmean(losses[-EDGE:])
    # The parent of a stage was already trained on the text of its first steps.
    falls = scaled.start is not None or last < first
    return row | {
        "steps": len(losses),
        "first": first,
        "last": last,
        "held_out_first": first_loss,
        "held_out_final": held_out["final_unweighted"],
        "falls": falls and held_out["final_unweighted"] < first_loss,
    }


def read_held_out(run: Path) -> dict[str, Any]:
    """Read the held-out losses of a finished run."""
    held_out: dict[str, Any] = json.loads((run / "results.json").read_text())["held_out"]
    return held_out


def parent_words(recipe: Recipe, home: Path) -> list[str]:
    """Return the arguments for the parent run and its tokenizer; train a missing parent."""
    if recipe.start is None or recipe.start.recipe is None:
        return []
    parent = home / recipe.start.recipe
    if not parent.exists():
        train_miniature(parent.name, home)
    data = json.loads((parent / "data.json").read_text("utf-8"))
    return [
        f"from={{run: {parent}, with: {recipe.start.takes}}}",
        f"data.tokenizer_folder={data['folder']}",
    ]


def main(words: Sequence[str]) -> int:
    """Train the miniatures; print and save each row, and write the ledger."""
    names = words or published_recipes()
    console = create_console()
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for name in names:
            rows.append(train_miniature(name, Path(home)))
            console.print(rows[-1])
            save_rows(RESULT, CONVENTION, rows[-1:], lambda row: [row["recipe"]])
    ledger.write_pages()
    return 0 if all(row["falls"] for row in rows) else 1


if __name__ == "__main__":
    run_script(main)
