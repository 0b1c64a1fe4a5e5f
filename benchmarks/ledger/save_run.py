"""Save a run at full size on real devices as a row of the ledger.

    python -m benchmarks.ledger.save_run RUN [RUN ...]

RUN is a run folder or a site card. The row belongs to the recipe of the run and lists the keys
that differ from that recipe.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.entry import run_script
from benchmarks.ledger import ledger
from benchmarks.ledger.proofs import FILES, MEASURED
from benchmarks.results_store import ResultRow, hash_groups, save_rows
from command.arguments import read_point
from command.calibrate import read_step
from command.card.reading import compose_measured
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.site_card import read_card
from components.sharing.differences import Side, compare_sides

CONVENTION = "seconds per step by the median rate of all steps; peak memory of the first rank"
GROUPS = (KeyGroup.MATHEMATICS, KeyGroup.LAYOUT)


def row_of(run: Path) -> ResultRow:
    """Read the step of a run, and compare its recipe with the published one.

    Raises:
        RecipeError: the run has not ended, has several layouts, or does not have full size.
    """
    recipe, step = read_step(run)
    if recipe.scale.name != "full":
        problem = f"{run} has scale={recipe.scale.name}, but the ledger has only full size"
        raise RecipeError("scale", problem, "run it with scale=full")
    environment = json.loads((run / "environment.json").read_text("utf-8"))
    return {
        **_describe_layout(recipe),
        "step_seconds": step.seconds,
        "peak_memory_bytes": step.peak_bytes,
        "date": environment["started"][:10],
        "machine": {key: environment[key] for key in ("processor", "cores")},
        "versions": {"python": environment["python"], **environment["versions"]},
    }


def card_row(file: Path) -> ResultRow:
    """Read the step of a site card.

    Raises:
        RecipeError: the card is of CPUs, not of full size, or of another recipe.
    """
    card = read_card(file, "card")
    run = card.run
    if not card.is_of_accelerator:
        raise RecipeError("card", f"{file} was {card.notice}", "save cards of accelerators")
    measured = compose_measured(card) if run.scale == "full" else None
    if measured is None:
        problem = f"{file} has no step of {run.recipe} at full width as it is here"
        raise RecipeError("card", problem, "read the card at its commit, or measure again")
    return {
        **_describe_layout(measured),
        "cluster": run.cluster,
        "step_seconds": card.find_value("step"),
        "peak_memory_bytes": card.find_value("peak_memory"),
        "date": card.date,
        "machine": {"processor": card.machine.processor, "cores": card.machine.cores},
        "versions": dict(card.versions),
    }


def _describe_layout(run: Recipe) -> ResultRow:
    """Compare a run at full size with its published recipe."""
    published = compose_recipe(read_point([f"recipe={run.name}", "scale=full"]))
    tree = published.model_dump(mode="json")
    sides = Side(label="recipe", tree=tree), Side(label="run", tree=run.model_dump(mode="json"))
    differences = compare_sides(*sides)
    return {
        "recipe": run.name,
        "cluster": run.cluster.name,
        "ranks": run.derived_numbers.ranks,
        "changed": [key for group in GROUPS for key in differences[group]],
        "scale": run.scale.name,
        "fingerprint": hash_groups(tree, GROUPS),
    }


def key_of(row: ResultRow) -> tuple[str, ...]:
    """Return the key of a row; a new measurement of a layout replaces the old row."""
    return tuple(str(row[key]) for key in ("recipe", "cluster", "ranks", "changed"))


def main(words: Sequence[str]) -> int:
    """Save each run, and write the ledger."""
    for word in words:
        try:
            row = card_row(Path(word)) if word.endswith(".json") else row_of(Path(word))
        except RecipeError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        save_rows(FILES[MEASURED], CONVENTION, [row], key_of)
    ledger.write_pages()
    return 0


if __name__ == "__main__":
    run_script(main)
