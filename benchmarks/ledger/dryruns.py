"""Does every recipe's step fit its home's devices, and how far off is the plan's memory?

Each recipe is rehearsed at full size in its published layout (`action=dryrun`), on this machine
and without a GPU. Named recipes alone are done again; the others keep what was found.

    python -m benchmarks.ledger.dryruns [NAME ...]
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import Any

from benchmarks.entry import enter
from benchmarks.kept import stamp
from benchmarks.ledger import ledger
from benchmarks.ledger.proofs import DRY_RUN, FILES, recipe_at_home
from benchmarks.marked import split_marked
from benchmarks.recipes import published_recipes
from command.arguments import ROOT, read_point
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup

RESULT = FILES[DRY_RUN]
PAGE = ROOT / "docs" / "dryrun.md"
GIB = 2**30
HEAD = """\
| Recipe | Cluster | Roles | Peak | Usable | Plan | Difference | Verdict | Clock | Both | Here |
|---|---|---:|---:|---:|---:|---:|---|---:|---:|---:|
"""


def rehearse(name: str) -> dict[str, Any]:
    """Run one recipe at home in a process of its own.

    Raises:
        RuntimeError: it printed no object.
    """
    home = compose_recipe(read_point([f"recipe={name}"])).home
    words = [f"recipe={name}", f"cluster={home}", "action=dryrun", "output=json"]
    with TemporaryFile("w+") as said, TemporaryFile("w+") as noted:
        running = subprocess.Popen(
            [sys.executable, "run.py", *words], cwd=ROOT, stdout=said, stderr=noted
        )
        _, _, used = os.wait4(running.pid, 0)  # with all that it started
        running.returncode = 0
        said.seek(0)
        noted.seek(0)
        if not (text := said.read()):
            raise RuntimeError(f"{name}: {noted.read()[-2000:]}")
    tree: dict[str, Any] = json.loads(text)
    processors = used.ru_utime + used.ru_stime
    cost = {"processor_seconds": processors, "host_bytes": used.ru_maxrss * 1024}
    recipe = compose_recipe(read_point([f"recipe={name}", f"cluster={home}"]))
    return tree | cost | stamp(recipe, KeyGroup.MATHEMATICS, KeyGroup.LAYOUT)


def row(tree: dict[str, Any]) -> str:
    """Write a recipe's line of the table."""
    memory = tree["memory"]
    sizes = [memory[f"{key}_bytes"] / GIB for key in ("peak", "usable", "planned")]
    apart = f"{memory['peak_bytes'] / memory['planned_bytes'] - 1:+.0%}"
    verdict = memory["verdict"].replace("_", " ")
    cells = [
        *(f"`{tree['recipe']}`", tree["cluster"], str(len(tree["roles"]))),
        *(f"{size:.1f}" for size in sizes),
        *(apart, verdict, f"{tree['seconds']:.0f}", f"{tree['processor_seconds']:.0f}"),
        f"{tree['host_bytes'] / GIB:.1f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def main(words: Sequence[str]) -> int:
    """Rehearse, keep after every recipe, write the page."""
    known = json.loads(RESULT.read_text("utf-8"))["recipes"] if RESULT.exists() else {}
    every = published_recipes()
    for name in words or every:
        if recipe_at_home(name).parallelism.engine == "deepspeed":
            sys.stderr.write(f"{name}: DeepSpeed calls its own collectives, no dry run\n")
            continue
        known[name] = rehearse(name)
        sys.stderr.write(row(known[name]))
        kept = {"recipes": {key: known[key] for key in sorted(known)}}
        RESULT.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    missing = ", ".join(f"`{name}`" for name in every if name not in known)
    rows = "".join(row(known[name]) for name in sorted(known))
    head, _, tail = split_marked(PAGE.read_text("utf-8"), "dry runs", "make dryruns")
    left = f"\nWithout a dry run: {missing}.\n" * bool(missing)
    PAGE.write_text(head + HEAD + rows + left + tail, "utf-8")
    ledger.write()
    return 0


if __name__ == "__main__":
    enter(main)
