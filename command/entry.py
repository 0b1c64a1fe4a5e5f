"""Signal handling for the command-line process.

Before there is anything to clean up, a signal ends the process immediately. Later, Ctrl-C and
SIGTERM raise `StopSignal` so that partial files are removed. A run that trains saves and stops.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM)
UNINTERRUPTED = ("<frozen importlib._bootstrap>", f"{os.sep}pydantic{os.sep}")
DELAY_SECONDS = 0.02
Handler = Callable[[int, FrameType | None], object]


class StopSignal(KeyboardInterrupt):
    """A signal that asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run_with_signals(words: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    _handle(_leave)
    # pydantic's search for plugins would read the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from command.outcome import ActionResult, call_and_report  # slow: after the signal handler

    def run_main() -> ActionResult:
        from command.main import main  # slow: pydantic; within `call_and_report`

        sys.unraisablehook = _hear_again
        _handle(_raise)
        return ActionResult(main(words))

    status = int(call_and_report(run_main, words).status)
    _handle(lambda number, frame: os._exit(status))  # nothing is left to clean up
    return status


def _handle(handler: Handler) -> None:
    """Set the signal handler. A signal that was ignored, as under ``nohup``, stays ignored."""
    for number in NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"stopped before any work started\n")
    os._exit(128 + number)


def _raise(number: int, frame: FrameType | None) -> None:
    """Raise `StopSignal`, but not during an import and not in pydantic.

    An exception in torch's import aborts. Pydantic reports an exception as an error of the
    schema that it builds.
    """
    while frame is not None:
        if any(name in frame.f_code.co_filename for name in UNINTERRUPTED):
            _raise_later(number)
            return
        frame = frame.f_back
    raise StopSignal(number)


def _raise_later(number: int) -> None:
    signal.signal(signal.SIGALRM, lambda alarm, frame: _raise(number, frame))
    signal.setitimer(signal.ITIMER_REAL, DELAY_SECONDS)


def _hear_again(lost: "sys.UnraisableHookArgs") -> None:
    """Schedule a signal again that arrived in a finalizer, where Python drops exceptions.

    A MemoryError there is not printed: a traceback does not help, and a command that needs
    more memory reports the error itself.
    """
    if isinstance(lost.exc_value, StopSignal):
        _raise_later(lost.exc_value.number)
    elif not isinstance(lost.exc_value, MemoryError):
        sys.__unraisablehook__(lost)
