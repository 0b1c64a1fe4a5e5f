"""Before the ranks start: ``python -m cluster.copies RUN PYTHON``, an environment or an image.

Its status is 2 if that cannot be copied; the reason is then the job's.
"""

import json
import sys
from pathlib import Path

from cluster.copies.archives import list_archives
from components.errors import RecipeError
from components.fault_tolerance.failures import MENDABLE, error_file
from components.run.provenance import ROOT
from components.terminal import say


def main(run: Path, python: Path) -> int:
    """List the archives, or leave the error as a rank would."""
    try:
        list_archives(run, python, ROOT)
    except RecipeError as error:
        message = {"message": f"{RecipeError.__name__}: {error}"}
        error_file(run / "ranks", 0).write_text(json.dumps(message), "utf-8")
        say(str(error))
        return MENDABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
