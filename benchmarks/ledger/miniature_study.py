"""Keep what a study of miniatures measured, for docs/tables.md.

    python -m benchmarks.ledger.miniature_study NAME [run=FOLDER]

The study is the command's own, `-m study=NAME`: runs that are finished, here in the folder that
is named, are taken as they are.
`benchmarks/results/studies.json` has a figure a point, in the study's order.
"""

import json
import subprocess
import sys

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, circumstances
from command.arguments import ROOT
from components.terminal import console

RESULT = RESULTS / "studies.json"


def main(words: list[str]) -> int:
    """Run the study, keep its figures, print them."""
    name, *where = words
    command = [sys.executable, "run.py", "-m", f"study={name}", "output=json", *where]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    kept = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    kept[name] = {
        "objective": found["objective"]["measured"],
        "points": [
            {"point": one["point"], "measured": one["measured"]} for one in found["points"]
        ],
        **circumstances(
            peer="the points, beside each other",
            convention="one seed; the study's file says of what",
            shape={"study": name},
            packages=("torch", "lightning"),
        ),
    }
    RESULT.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    console().print_json(data=kept[name])
    return 0


if __name__ == "__main__":
    enter(main, least=1, most=2)
