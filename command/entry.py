"""What holds for this process from its first line to its last: how signals end it.

While nothing needs tidying a signal ends the process where it stands. Then Ctrl-C and SIGTERM
are an exception, `StopSignal`, so that what is half-written goes. A run that trains listens
itself, saves and stops.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM)
IMPORTING = "<frozen importlib._bootstrap>"
DELAY_SECONDS = 0.02
Handler = Callable[[int, FrameType | None], object]


class StopSignal(KeyboardInterrupt):
    """A signal asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def enter(words: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    _handle(_leave)
    # Looking for plugins of pydantic would read the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from command.outcome import ActionResult, attempt  # slow: after the signal handler

    def act() -> ActionResult:
        from command.main import main  # slow: pydantic; within `attempt`

        sys.unraisablehook = _hear_again
        _handle(_raise)
        return ActionResult(main(words))

    status = int(attempt(act, words).status)
    _handle(lambda number, frame: os._exit(status))  # it ends, and nothing is left to tidy
    return status


def _handle(handler: Handler) -> None:
    """Set the handler; a signal that was ignored before, as below ``nohup``, stays ignored."""
    for number in NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"stopped; nothing had begun\n")
    os._exit(128 + number)


def _raise(number: int, frame: FrameType | None) -> None:
    """Raise `StopSignal`, but not inside an import: of torch's it would make an abort."""
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            _raise_later(number)
            return
        frame = frame.f_back
    raise StopSignal(number)


def _raise_later(number: int) -> None:
    signal.signal(signal.SIGALRM, lambda alarm, frame: _raise(number, frame))
    signal.setitimer(signal.ITIMER_REAL, DELAY_SECONDS)


def _hear_again(lost: "sys.UnraisableHookArgs") -> None:
    """Raise a signal again that arrived in a finalizer, where Python drops exceptions.

    A MemoryError there is not printed: a traceback does not help, and a command that needs
    more memory reports the error itself.
    """
    if isinstance(lost.exc_value, StopSignal):
        _raise_later(lost.exc_value.number)
    elif not isinstance(lost.exc_value, MemoryError):
        sys.__unraisablehook__(lost)
