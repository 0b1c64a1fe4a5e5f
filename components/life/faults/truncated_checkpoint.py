"""The newest checkpoint loses half a file, as when a server dies before all is on its disks."""

from components.checkpoint.faults import truncate_newest
from components.life.rehearsal import Reach
from components.spec.guard import TruncatedCheckpoint


def fire(fault: TruncatedCheckpoint, reach: Reach) -> None:
    """Cut it; only a run that goes back or starts again reads it.

    Raises:
        RecipeError: there is no checkpoint yet.
    """
    truncate_newest(reach.checkpoints)
