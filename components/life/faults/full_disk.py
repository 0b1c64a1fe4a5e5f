"""Disk or quota is full for a while: small files can be written, checkpoints cannot."""

import threading
from contextlib import ExitStack

from components.checkpoint.faults import fill_up
from components.life.rehearsal import Reach
from components.spec.guard import FullDisk


def fire(fault: FullDisk, reach: Reach) -> None:
    """Limit this process's files; room comes back by itself, or with the next process."""
    full = ExitStack()
    full.enter_context(fill_up(fault.free_bytes))
    room_again = threading.Timer(fault.seconds, full.close)
    room_again.daemon = True  # a run that ends does not wait for room
    room_again.start()
