"""Both ranks of run folders, rehearsed: ``python rehearsed_ranks.py FOLDER [FOLDER]``."""

import sys

from components.dryrun.rehearsal import main

if __name__ == "__main__":
    for folder in sys.argv[1:]:
        for rank in ("0", "1"):
            main([folder, rank])
