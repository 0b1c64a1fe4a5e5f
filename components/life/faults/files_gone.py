"""The checkpoints' file system goes away for a while, as a mount does whose server restarts."""

from components.checkpoint.faults import take_away
from components.life.rehearsal import Reach
from components.spec.guard import FilesGone


def fire(fault: FilesGone, reach: Reach) -> None:
    """Hide the folder; it comes back whatever becomes of this rank."""
    take_away(reach.checkpoints, fault.seconds)
