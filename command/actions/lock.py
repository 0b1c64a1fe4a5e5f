"""Freeze a recipe, or a run that was made, in one file that ``verify`` compares later."""

import sys

from command.arguments import Arguments
from command.locking import make_lock, write_lock
from command.outcome import Outcome


def run(arguments: Arguments) -> Outcome:
    """Write ``NAME-HASH.lock.yaml``, or the file that is named, and say what it lacks."""
    lock = make_lock(arguments, bundle=False)
    file, outcome = write_lock(lock, arguments, "lock")
    if isinstance(lock.data, str):
        sys.stderr.write("no data are prepared: the lock has no hashes of them\n")
    sys.stdout.write(f"{file}\n")
    return outcome
