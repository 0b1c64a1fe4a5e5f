"""The first act of a job: ``python -m cluster.begin RUN``; 3 if nothing is left to do."""

import os
import sys
from pathlib import Path

from cluster.chain import begin

if __name__ == "__main__":
    sys.exit(begin(Path(sys.argv[1]), os.environ))
