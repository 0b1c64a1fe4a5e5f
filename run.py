"""The one entry: ``python run.py recipe=NAME [cluster=NAME] [action=NAME] [key=value ...]``."""

import sys

from command.entry import enter

if __name__ == "__main__":
    sys.exit(enter(sys.argv[1:]))
