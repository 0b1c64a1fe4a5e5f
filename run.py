"""The one entry: ``python run.py recipe=NAME [cluster=NAME] [action=NAME] [key=value ...]``."""

import sys

try:
    from command.main import main
except ModuleNotFoundError as missing:
    sys.exit(f"{missing}: run `make setup`, then use .venv/bin/python")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
