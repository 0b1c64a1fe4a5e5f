"""Prove layouts of every recipe equal to one process, and save the differences.

    python -m benchmarks.ledger.parity [RECIPE ...]

`data/proved_layouts.yaml` lists the layouts; other recipes have two layouts on four ranks. With
names, only these recipes are proved; the other recipes keep their rows. Exit status 1 if a
layout differs from one process.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from benchmarks.entry import run_script
from benchmarks.ledger import ledger
from benchmarks.ledger.proofs import FILES, PARITY
from benchmarks.recipes import published_recipes
from benchmarks.results_store import ROOT, ResultRow, save_rows, stamp_row
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup

RESULT = FILES[PARITY]
LAYOUTS = ROOT / "benchmarks" / "data" / "proved_layouts.yaml"
CONVENTION = (
    "largest relative differences from one process over ten steps in float64, in DeepSpeed's "
    "layouts in float32; float32_loss: the same steps in float32, no criterion; dropout 0; "
    "random tokens; seconds by the wall clock"
)
PARTS = ("loss", "gradient_norm", "gradient", "weight")
LAYOUT_KEYS = ("layouts=", "cluster.ranks=")
# One layout over the axes of the recipe, and one with context and pipeline ranks.
_CUTS = "{context: 2, pipeline: 2, schedule: 1f1b, stages_per_rank: 1, zero: 1}"
UNLISTED = [["cluster.ranks=4"], [f"layouts=[{_CUTS}]"]]


def listed_layouts() -> dict[str, list[list[str]]]:
    """Return the arguments of each published recipe's commands, without its name."""
    listed = yaml.safe_load(LAYOUTS.read_text("utf-8"))
    return {name: listed.get(name, UNLISTED) for name in published_recipes()}


def prove_layouts(recipe: str, words: Sequence[str]) -> list[ResultRow]:
    """Prove the layouts of one command in a new process.

    Raises:
        RuntimeError: the command printed no result.
    """
    command_words = [f"recipe={recipe}", *words, "action=parity", "output=json"]
    program = [sys.executable, "run.py", *command_words]
    process = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if not process.stdout:
        raise RuntimeError(f"{recipe}: {' '.join(words)}: exit status {process.returncode}")
    tree = json.loads(process.stdout)
    return [row_of(recipe, words, proof) for proof in tree.get("layouts", [tree])]


def row_of(recipe: str, words: Sequence[str], proof: dict[str, Any]) -> ResultRow:
    """Return the row of one layout, with the other keys of the command."""
    scaled = compose_recipe(read_point([f"recipe={recipe}", "scale=parity"]))
    figures = {part: proof.get(part, {}).get("largest_relative_difference") for part in PARTS}
    float32 = proof.get("float32", {})
    packages = ("deepspeed",) if proof["layout"]["engine"] == "deepspeed" else ()
    return {
        "recipe": recipe,
        "words": [word for word in words if not word.startswith(LAYOUT_KEYS)],
        **{key: proof[key] for key in ("label", "ranks", "holds", "precision", "tolerance")},
        **figures,
        "float32_loss": float32.get("loss", {}).get("largest_relative_difference"),
        "seconds": proof["seconds"],
        **stamp_row(scaled, KeyGroup.MATHEMATICS, packages=packages),
    }


def key_of(row: ResultRow) -> tuple[str, ...]:
    """Return the key of a row; a new proof replaces the old row."""
    return row["recipe"], row["label"], *row["words"]


def main(names: Sequence[str]) -> int:
    """Prove the layouts, save after every command, and write the ledger."""
    listed = listed_layouts()
    if unknown := sorted({*names} - {*listed}):
        sys.stderr.write(f"not a published recipe: {', '.join(unknown)}\n")
        return 2
    proved: list[ResultRow] = []
    for name in names or listed:
        for words in listed[name]:
            rows = prove_layouts(name, words)
            proved += rows
            save_rows(RESULT, CONVENTION, rows, key_of)
    ledger.write_pages()
    for row in proved:
        if not row["holds"]:
            sys.stderr.write(f"{row['recipe']}, {row['label']}: does not hold\n")
    return 0 if all(row["holds"] for row in proved) else 1


if __name__ == "__main__":
    run_script(main)
