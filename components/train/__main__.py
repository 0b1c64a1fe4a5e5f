"""One rank: ``python -m components.train RUN_FOLDER``, as job scripts start it.

A rank that saved and stopped ends with 0, or its launcher would call it a failure; how the run
ended is in ``results.json``. An error goes to torchrun's error file, if there is one.
"""

import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from components.train.fit import fit

if __name__ == "__main__":
    record(fit)(Path(sys.argv[1]))
