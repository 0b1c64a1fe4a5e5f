"""Check one node of a job before its ranks start: ``python -m components.preflight RUN``."""

import os
import sys
from pathlib import Path

from components.preflight.node import take_part

if __name__ == "__main__":
    take_part(Path(sys.argv[1]), os.environ)
