"""Write one HTML file from one or more run folders."""

import sys
from pathlib import Path

from command.arguments import Arguments
from command.outcome import Outcome
from components.errors import RecipeError
from components.report.page import write_report


def run(arguments: Arguments) -> Outcome:
    """Report ``run=FOLDER`` or ``runs=[...]`` into ``file=FILE``, or beside the run."""
    runs = list(arguments.runs)
    if "run" in arguments.folders:
        runs.insert(0, arguments.folders["run"])
    if not runs:
        raise RecipeError(
            "runs", "no run is named", "write run=FOLDER, or runs=[FOLDER,FOLDER]"
        )
    beside = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    file = write_report(runs, arguments.folders.get("file", beside))
    sys.stdout.write(f"{file}\n")
    return Outcome()
