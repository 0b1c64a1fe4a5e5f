"""A rank is gone, without a word, as when its node is lost or memory runs out."""

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it needs no torch
    from components.life.rehearsal import Reach
    from components.spec.guard import Kill


def fire(fault: "Kill", reach: "Reach") -> None:
    """End this process by a signal that none can catch."""
    os.kill(os.getpid(), signal.SIGKILL)
