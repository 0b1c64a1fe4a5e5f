"""Entry point: ``python run.py recipe=NAME [cluster=NAME] [action=NAME] [key=value ...]``."""

import sys

from components.child_process import leave_working_folder

if __name__ == "__main__":
    leave_working_folder()  # first: later imports must not load files of that folder

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from the imports below

from components.versions import refuse_old_versions

if __name__ == "__main__":
    refuse_old_versions()  # before an older Python reaches newer syntax

from command.entry import run_with_signals

if __name__ == "__main__":
    sys.exit(run_with_signals(sys.argv[1:]))
