"""One rank: ``python -m components.train RUN_FOLDER``, as job scripts start it.

A rank that saved and stopped ends with 0, or its launcher would call it a failure; how the run
ended is in ``results.json``. An error goes to torchrun's error file, in a job to a file below
``ranks/``.
"""

import os
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from components.spec.recipe import read_recipe
from components.train.fit import fit
from components.train.ranks import rank_variables
from components.train.run_folder import RunFolder


def be_a_rank(path: Path) -> None:
    """Train the run in ``path`` as the rank that whoever started this process says it is."""
    cluster = read_recipe(RunFolder(path).recipe).cluster
    os.environ |= rank_variables(
        os.environ, ranks=cluster.ranks, per_node=cluster.devices_per_node
    )
    if cluster.scheduler != "none":  # where torchrun is, it has named such a file already
        error = path / "ranks" / f"error-{os.environ.get('RANK', '0')}.json"
        os.environ.setdefault("TORCHELASTIC_ERROR_FILE", str(error))
    fit(path)


if __name__ == "__main__":
    record(be_a_rank)(Path(sys.argv[1]))
