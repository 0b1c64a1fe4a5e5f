"""The one entry: ``python run.py recipe=NAME [cluster=NAME] [action=NAME] [key=value ...]``."""

import sys

from components.child_process import leave_working_folder

if __name__ == "__main__":
    leave_working_folder()  # first: what is imported next is no file of that folder

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback out of the imports below

from components.versions import refuse

if __name__ == "__main__":
    refuse()  # before an older Python meets what it cannot read

from command.entry import enter

if __name__ == "__main__":
    sys.exit(enter(sys.argv[1:]))
