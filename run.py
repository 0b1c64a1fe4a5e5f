"""The one entry: ``python run.py recipe=NAME [cluster=NAME] [action=NAME] [key=value ...]``."""

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback out of the imports below

from components.versions import refuse

if __name__ == "__main__":
    refuse()  # before an older Python meets what it cannot read

from command.entry import enter

if __name__ == "__main__":
    sys.exit(enter(sys.argv[1:]))
