"""A rank makes no progress: the others wait for it in their next collective."""

import ctypes
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who only hangs needs no torch
    from components.life.rehearsal import Reach
    from components.spec.guard import Hang

_LONG_SECONDS = 1_000_000
_MUTEX_BYTES = 64  # as glibc makes one, all zeros; more than any platform's needs


def fire(fault: "Hang", reach: "Reach") -> None:
    """Sleep for days, or wait for ever without giving other threads of Python a turn.

    What is called by `PyDLL` keeps the interpreter's lock, unlike `CDLL`; and no signal ends
    the wait for a mutex.
    """
    if fault.how == "sleeps":
        time.sleep(_LONG_SECONDS)
    mutex, library = ctypes.create_string_buffer(_MUTEX_BYTES), ctypes.PyDLL(None)
    for _ in range(2):  # the second waits for the first
        library.pthread_mutex_lock(mutex)
