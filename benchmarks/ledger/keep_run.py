"""Keep a run at full size on real devices for the ledger.

    python -m benchmarks.ledger.keep_run RUN [RUN ...]

The row is of the recipe that the run is named by; keys that it had otherwise are listed.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.entry import enter
from benchmarks.kept import Row, fingerprints, keep_rows
from benchmarks.ledger import ledger
from benchmarks.ledger.proofs import FILES, MEASURED
from command.arguments import read_point
from command.calibrate import read_steps
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.sharing.differences import Side, compare

CONVENTION = "seconds a step by the median rate of all steps; peak memory of the first rank"
GROUPS = (KeyGroup.MATHEMATICS, KeyGroup.LAYOUT)


def row_of(run: Path) -> Row:
    """Read a run's step, and hold its recipe against the one of its name.

    Raises:
        RecipeError: it has not ended, is no measurement of one layout, or is not of full size.
    """
    (step,) = read_steps(run, read_point([]))
    recipe = step.recipe
    if recipe.scale.name != "full":
        problem = f"{run} is of scale={recipe.scale.name}, the ledger keeps full size"
        raise RecipeError("scale", problem, "run it with scale=full")
    named = compose_recipe(read_point([f"recipe={recipe.name}", "scale=full"]))
    made_with = json.loads((run / "environment.json").read_text("utf-8"))
    return {
        "recipe": recipe.name,
        "cluster": recipe.cluster.name,
        "ranks": recipe.derived.ranks,
        "step_seconds": step.seconds,
        "peak_memory_bytes": step.peak_bytes,
        "changed": _changed(named, recipe),
        "scale": recipe.scale.name,
        "fingerprint": fingerprints(named.model_dump(mode="json"), GROUPS),
        "date": made_with["started"][:10],
        "machine": {key: made_with[key] for key in ("processor", "cores")},
        "versions": {"python": made_with["python"], **made_with["versions"]},
    }


def _changed(named: Recipe, run: Recipe) -> list[str]:
    sides = [
        Side(label=label, tree=recipe.model_dump(mode="json"))
        for label, recipe in (("recipe", named), ("run", run))
    ]
    found = compare(*sides)
    return [key for group in GROUPS for key in found[group]]


def key_of(row: Row) -> tuple[str, ...]:
    """Tell rows apart; the same layout measured again takes the place of its like."""
    return tuple(str(row[key]) for key in ("recipe", "cluster", "ranks", "changed"))


def main(words: Sequence[str]) -> int:
    """Keep each run, and write the ledger."""
    for word in words:
        try:
            row = row_of(Path(word))
        except RecipeError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        keep_rows(FILES[MEASURED], CONVENTION, [row], key_of)
    ledger.write()
    return 0


if __name__ == "__main__":
    enter(main)
