"""A rank makes no progress: the others wait for it in their next collective."""

import ctypes
import time

from components.life.rehearsal import Reach
from components.spec.guard import Hang

_LONG_SECONDS = 1_000_000


def fire(fault: Hang, reach: Reach) -> None:
    """Sleep for days, and as asked without giving other threads of Python a turn."""
    if fault.how == "sleeps":
        time.sleep(_LONG_SECONDS)
    else:
        ctypes.PyDLL(None).sleep(_LONG_SECONDS)  # called with the lock held, unlike CDLL's
