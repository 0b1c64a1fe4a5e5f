"""Process of one rank: ``python -m components.train RUN_FOLDER``, started by job scripts.

A rank that saved and stopped exits with 0: another status is a failure for its launcher. The
outcome of the run is in ``results.json``. An error goes to a file in ``ranks/``. If the disk is
full, a user error is printed, and the exit status is `MENDABLE`.
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
from components.terminal import log_line
from components.train.fit import fit_phase
from components.train.ranks import make_cache_folders, rank_variables


def be_a_rank(path: Path) -> None:
    """Train the run in ``path`` as one rank. The launcher's variables set the rank's number."""
    folder = RunFolder(path)
    recipe = read_recipe(folder.recipe)
    os.environ |= rank_variables(
        os.environ, ranks=recipe.cluster.ranks, per_node=recipe.cluster.devices_per_node
    )
    make_cache_folders(os.environ)
    # The same folder for all ranks: torchrun's path contains the local rank and the attempt.
    error = error_file(path / "ranks", int(os.environ.get("RANK", "0")))
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(error)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        raise_again(path / "ranks")
    with rank_holds(path, os.environ):
        fit_phase(folder, recipe)


if __name__ == "__main__":
    try:
        record(be_a_rank)(Path(sys.argv[1]))
    except OSError as error:  # also if `record` cannot write another error to a full disk
        if not isinstance(error.__context__, RecipeError):
            raise
        log_line(f"{error.__context__}")
        sys.exit(MENDABLE)
