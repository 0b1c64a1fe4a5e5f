"""Save the measurements of a study of miniatures, for docs/tables.md.

    python -m benchmarks.ledger.miniature_study NAME [run=FOLDER]

The script runs the command `-m study=NAME`. Finished runs in the folder are not repeated.
`benchmarks/results/studies.json` has a figure per point, in the order of the study.
"""

import json
import subprocess
import sys

from benchmarks.entry import run_script
from benchmarks.results_store import RESULTS, read_tree, result_context, save_tree
from command.arguments import ROOT
from components.terminal import create_console

RESULT = RESULTS / "studies.json"


def main(words: list[str]) -> int:
    """Run the study; save and print its figures."""
    name, *options = words
    command = [sys.executable, "run.py", "-m", f"study={name}", "output=json", *options]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    study = json.loads(process.stdout)
    results = read_tree(RESULT)
    results[name] = {
        "objective": study["objective"]["measured"],
        "points": [
            {"point": row["point"], "measured": row["measured"]} for row in study["points"]
        ],
        **result_context(
            peer="the other points of the study",
            convention="one seed; the objective in the study's file",
            shape={"study": name},
        ),
    }
    save_tree(RESULT, results)
    create_console().print_json(data=results[name])
    return 0


if __name__ == "__main__":
    run_script(main, min_words=1, max_words=2)
