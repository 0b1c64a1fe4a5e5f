"""Does the step of every recipe fit its reference cluster, and how accurate is the plan?

Each recipe is rehearsed at full size in its published layout (`action=dryrun`), on this machine
without a GPU. With names, only these recipes run; the other recipes keep their results.

    python -m benchmarks.ledger.dryruns [NAME ...]
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import Any

from benchmarks.entry import run_script
from benchmarks.generated_section import replace_section, table_line
from benchmarks.ledger import ledger
from benchmarks.ledger.proofs import DRY_RUN, FILES, recipe_at_home
from benchmarks.recipes import published_recipes
from benchmarks.results_store import read_tree, save_tree, stamp_row
from command.arguments import ROOT
from components.config.key_groups import KeyGroup

RESULT = FILES[DRY_RUN]
PAGE = ROOT / "docs" / "dryrun.md"
GIB = 2**30
HEAD = """\
| Recipe | Cluster | Roles | Peak | Usable | Plan | Difference | Verdict | Clock | Both | Here |
|---|---|---:|---:|---:|---:|---:|---|---:|---:|---:|
"""


def rehearse_recipe(name: str) -> dict[str, Any]:
    """Run the dry run of a recipe on its reference cluster in a new process.

    Raises:
        RuntimeError: the command printed no result.
    """
    recipe = recipe_at_home(name)
    words = [f"recipe={name}", f"cluster={recipe.cluster.name}", "action=dryrun", "output=json"]
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "run.py", *words], cwd=ROOT, stdout=output, stderr=errors
        )
        _, _, usage = os.wait4(process.pid, 0)  # includes child processes
        process.returncode = 0
        output.seek(0)
        errors.seek(0)
        if not (text := output.read()):
            raise RuntimeError(f"{name}: {errors.read()[-2000:]}")
    tree: dict[str, Any] = json.loads(text)
    processor_seconds = usage.ru_utime + usage.ru_stime
    cost = {"processor_seconds": processor_seconds, "host_bytes": usage.ru_maxrss * 1024}
    return tree | cost | stamp_row(recipe, KeyGroup.MATHEMATICS, KeyGroup.LAYOUT)


def render_row(tree: dict[str, Any]) -> str:
    """Return the table row of a recipe."""
    memory = tree["memory"]
    sizes = [memory[f"{key}_bytes"] / GIB for key in ("peak", "usable", "planned")]
    difference = f"{memory['peak_bytes'] / memory['planned_bytes'] - 1:+.0%}"
    verdict = memory["verdict"].replace("_", " ")
    cells = [
        *(f"`{tree['recipe']}`", tree["cluster"], str(len(tree["roles"]))),
        *(f"{size:.1f}" for size in sizes),
        *(difference, verdict, f"{tree['seconds']:.0f}", f"{tree['processor_seconds']:.0f}"),
        f"{tree['host_bytes'] / GIB:.1f}",
    ]
    return table_line(cells)


def main(words: Sequence[str]) -> int:
    """Rehearse the recipes, save each result, and write the page."""
    results = read_tree(RESULT).get("recipes", {})
    recipes = published_recipes()
    for name in words or recipes:
        if recipe_at_home(name).parallelism.engine == "deepspeed":
            sys.stderr.write(f"{name}: no dry run, DeepSpeed calls its own collectives\n")
            continue
        results[name] = rehearse_recipe(name)
        sys.stderr.write(render_row(results[name]))
        save_tree(RESULT, {"recipes": {key: results[key] for key in sorted(results)}})
    missing = ", ".join(f"`{name}`" for name in recipes if name not in results)
    rows = "".join(render_row(results[name]) for name in sorted(results))
    footer = f"\nWithout a dry run: {missing}.\n" * bool(missing)
    text, table = PAGE.read_text("utf-8"), HEAD + rows + footer
    PAGE.write_text(replace_section(text, "dry runs", "make dryruns", table), "utf-8")
    ledger.write_pages()
    return 0


if __name__ == "__main__":
    run_script(main)
