"""One rank: ``python -m components.train RUN_FOLDER``, as job scripts start it.

A rank that saved and stopped ends with 0, or its launcher would call it a failure; how the run
ended is in ``results.json``. An error goes to a file below ``ranks/``; without room
for it, what a user has to mend is said here, and told by the exit status.
"""

import os
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from components.config.check import read_recipe
from components.errors import RecipeError
from components.fault_tolerance.failures import MENDABLE, error_file, raise_again
from components.run.folder import RunFolder
from components.run.writer_lock import rank_holds
from components.terminal import say
from components.train.fit import fit
from components.train.ranks import make_cache_folders, rank_variables


def be_a_rank(path: Path) -> None:
    """Train the run in ``path`` as the rank that whoever started this process says it is.

    Raises:
        RecipeError: what a user has to mend, also where the ranks before ended by it.
    """
    folder = RunFolder(path)
    recipe = read_recipe(folder.recipe)
    os.environ |= rank_variables(
        os.environ, ranks=recipe.cluster.ranks, per_node=recipe.cluster.devices_per_node
    )
    make_cache_folders(os.environ)
    # One place for all: torchrun's own has the rank's number on its node, and an attempt's.
    error = error_file(path / "ranks", int(os.environ.get("RANK", "0")))
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(error)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        raise_again(path / "ranks")
    with rank_holds(path, os.environ, say):
        fit(folder, recipe)


if __name__ == "__main__":
    try:
        record(be_a_rank)(Path(sys.argv[1]))
    except OSError as error:  # also where `record` finds no room for another error
        if not isinstance(error.__context__, RecipeError):
            raise
        say(f"{error.__context__}")
        sys.exit(MENDABLE)
