"""Prove layouts of every recipe equal to one process, and keep what was found.

    python -m benchmarks.ledger.parity [RECIPE ...]

`data/proved_layouts.yaml` says which; of recipes that it does not name, two on four ranks.
Named recipes alone are proved again; the others keep what was found. Exit status 1 if a layout
does not hold.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import yaml
from rich.table import Table

from benchmarks.entry import enter
from benchmarks.kept import ROOT, Row, keep_rows, stamp
from benchmarks.ledger import ledger
from benchmarks.ledger.proofs import FILES, PARITY
from benchmarks.recipes import published_recipes
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup
from components.terminal import console

RESULT = FILES[PARITY]
LAYOUTS = ROOT / "benchmarks" / "data" / "proved_layouts.yaml"
CONVENTION = (
    "largest relative differences from one process over ten steps in float64, in DeepSpeed's "
    "layouts in float32; float32_loss: the same steps in float32, not judged; dropout 0; drawn "
    "tokens; seconds by the wall clock"
)
PARTS = ("loss", "gradient_norm", "gradient", "weight")
LAYING = ("layouts=", "cluster.ranks=")
# Ranks dealt to the axes of the recipe; then the two that cut what attention and layers see.
_CUTS = "{context: 2, pipeline: 2, schedule: 1f1b, stages_per_rank: 1, zero: 1}"
UNLISTED = [["cluster.ranks=4"], [f"layouts=[{_CUTS}]"]]


def listed_layouts() -> dict[str, list[list[str]]]:
    """Give each published recipe's commands, as words behind its name."""
    listed = yaml.safe_load(LAYOUTS.read_text("utf-8"))
    return {name: listed.get(name, UNLISTED) for name in published_recipes()}


def prove(recipe: str, words: Sequence[str]) -> list[Row]:
    """Prove the layouts of one command in a process of its own.

    Raises:
        RuntimeError: it printed no object.
    """
    asked = [f"recipe={recipe}", *words, "action=parity", "output=json"]
    program = [sys.executable, "run.py", *asked]
    done = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"{recipe}: {' '.join(words)}: exit status {done.returncode}")
    tree = json.loads(done.stdout)
    return [row_of(recipe, words, proof) for proof in tree.get("layouts", [tree])]


def row_of(recipe: str, words: Sequence[str], proof: dict[str, Any]) -> Row:
    """Keep the figures of one layout, and the keys that were named beside it."""
    scaled = compose_recipe(read_point([f"recipe={recipe}", "scale=parity"]))
    figures = {part: proof.get(part, {}).get("largest_relative_difference") for part in PARTS}
    engine = proof["layout"]["engine"]
    return {
        "recipe": recipe,
        "words": [word for word in words if not word.startswith(LAYING)],
        **{key: proof[key] for key in ("label", "ranks", "holds", "precision", "tolerance")},
        **figures,
        "float32_loss": proof
        .get("float32", {})
        .get("loss", {})
        .get("largest_relative_difference"),
        "seconds": proof["seconds"],
        **stamp(
            scaled,
            KeyGroup.MATHEMATICS,
            packages=("deepspeed",) if engine == "deepspeed" else (),
        ),
    }


def key_of(row: Row) -> tuple[str, ...]:
    """Tell rows apart; one that is proved again takes the place of its like."""
    return row["recipe"], row["label"], *row["words"]


def print_table(rows: Sequence[Row]) -> None:
    """Print a line a layout."""
    table = Table("recipe", "layout", "ranks", *PARTS, "float32 loss", "seconds", "", box=None)
    for row in rows:
        figures = [row[part] for part in (*PARTS, "float32_loss")]
        cells = ["-" if figure is None else f"{figure:.1e}" for figure in figures]
        label = ", ".join([row["label"], *row["words"]])
        verdict = "holds" if row["holds"] else "DOES NOT HOLD"
        table.add_row(
            row["recipe"], label, str(row["ranks"]), *cells, f"{row['seconds']:.0f}", verdict
        )
    console(width=170).print(table)


def main(names: Sequence[str]) -> int:
    """Prove, keep after every command, print the table."""
    listed = listed_layouts()
    if unknown := sorted({*names} - {*listed}):
        sys.stderr.write(f"{', '.join(unknown)}: no published recipe\n")
        return 2
    found: list[Row] = []
    for name in names or listed:
        for words in listed[name]:
            rows = prove(name, words)
            found += rows
            keep_rows(RESULT, CONVENTION, rows, key_of)
    ledger.write()
    print_table(found)
    return 0 if all(row["holds"] for row in found) else 1


if __name__ == "__main__":
    enter(main)
