"""The last act of a job: ``python -m cluster.end RUN STATUS``, with the launcher's status."""

import sys
from pathlib import Path

from cluster.chain import end

if __name__ == "__main__":
    sys.exit(end(Path(sys.argv[1]), int(sys.argv[2])))
