"""Does every recipe's miniature learn? A hundred steps of each on the embedded text.

    python -m benchmarks.ledger.miniatures [RECIPE ...]

Named recipes alone are trained again; the others keep their rows. Exit status 1 if the held-out
loss of a miniature does not fall, or the mean loss of its last ten steps is not below the mean
of its first ten. For a recipe that continues from a checkpoint only the held-out loss counts.
Losses of different recipes do not compare: their tokenizers differ.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.entry import enter
from benchmarks.kept import ROOT, Row, keep_rows, stamp
from benchmarks.ledger import ledger
from benchmarks.ledger.proofs import FILES, MINIATURE
from benchmarks.recipes import published_recipes
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.terminal import console

RESULT = FILES[MINIATURE]
STEPS, GLOBAL_BATCH_TOKENS, EDGE = 100, 1_024, 10
CONVENTION = (
    f"{STEPS} steps of {GLOBAL_BATCH_TOKENS} tokens; nats a token; means over the first and "
    f"the last {EDGE} steps; held-out loss over all sources"
)


def train(recipe: str, home: Path) -> Row:
    """Train one miniature in a process of its own and read its journal."""
    run = home / recipe
    scaled = compose_recipe(read_point([f"recipe={recipe}", "scale=mini"]))
    found = {"recipe": recipe} | stamp(scaled, KeyGroup.MATHEMATICS)
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
        *begins(scaled, home),
    )
    program = [sys.executable, str(ROOT / "run.py"), *words]
    if not (run / "results.json").exists():  # else trained already, as the parent of another
        done = subprocess.run(program, cwd=home, capture_output=True, text=True, check=False)
        if done.returncode:
            return found | {"falls": False, "error": done.stderr.strip()[-2_000:]}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    held_out = read_held_out(run)
    begin = held_out["first_unweighted"]
    if begin is None:  # a run that continues with an optimizer begins where its parent ended
        assert scaled.start is not None
        begin = read_held_out(home / str(scaled.start.recipe))["final_unweighted"]
    first, last = statistics.fmean(losses[:EDGE]), statistics.fmean(losses[-EDGE:])
    # The run that a stage continues has seen the text of its first steps.
    falls = scaled.start is not None or last < first
    return found | {
        "steps": len(losses),
        "first": first,
        "last": last,
        "held_out_first": begin,
        "held_out_final": held_out["final_unweighted"],
        "falls": falls and held_out["final_unweighted"] < begin,
    }


def read_held_out(run: Path) -> dict[str, Any]:
    """Read the held-out losses of a run that has ended."""
    held_out: dict[str, Any] = json.loads((run / "results.json").read_text())["held_out"]
    return held_out


def begins(recipe: Recipe, home: Path) -> list[str]:
    """Name the run that a recipe's begins with, and its tokenizer; train it, if need be."""
    if recipe.start is None or recipe.start.recipe is None:
        return []
    parent = home / recipe.start.recipe
    if not parent.exists():
        train(parent.name, home)
    data = json.loads((parent / "data.json").read_text("utf-8"))
    return [
        f"from={{run: {parent}, with: {recipe.start.takes}}}",
        f"data.tokenizer_folder={data['folder']}",
    ]


def main(words: Sequence[str]) -> int:
    """Train, print the table, keep the result."""
    names = words or published_recipes()
    out = console()
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for name in names:
            rows.append(train(name, Path(home)))
            out.print(rows[-1])
            keep_rows(RESULT, CONVENTION, rows[-1:], lambda row: [row["recipe"]])
    table = Table("recipe", "first ten", "last ten", "held-out first", "final", "falls")
    for row in rows:
        keys = ("first", "last", "held_out_first", "held_out_final")
        figures = [row.get(key) for key in keys]
        cells = ["-" if figure is None else f"{figure:.3f}" for figure in figures]
        table.add_row(row["recipe"], *cells, "yes" if row["falls"] else "NO")
    out.print(table)
    ledger.write()
    return 0 if all(row["falls"] for row in rows) else 1


if __name__ == "__main__":
    enter(main)
