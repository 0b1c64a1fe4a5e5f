"""Freeze a recipe, or a run that was made, in one file that ``verify`` compares later."""

from command.arguments import Arguments
from command.locking import make_lock, write_lock
from command.outcome import Outcome
from components.terminal import say, tell


def run(arguments: Arguments) -> Outcome:
    """Write ``NAME-HASH.lock.yaml``, or the file that is named, and say what it lacks."""
    lock = make_lock(arguments, bundle=False)
    file, outcome = write_lock(lock, arguments, "lock")
    if isinstance(lock.data, str):
        say("no data are prepared: the lock has no hashes of them")
    tell(str(file))
    return outcome
