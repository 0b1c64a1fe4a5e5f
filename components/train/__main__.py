"""One rank: ``python -m components.train RUN_FOLDER``; torchrun and job scripts start this.

A rank that saved and stopped ends with 0, or its launcher would call it a failure; how the run
ended is in ``results.json``.
"""

import sys
from pathlib import Path

from components.train.fit import fit

if __name__ == "__main__":
    fit(Path(sys.argv[1]))
