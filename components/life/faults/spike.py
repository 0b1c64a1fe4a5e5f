"""A rank reads a batch that is no text but one token again and again: the loss leaps.

Repeated n-grams in web text did so to OLMo's gradients (OLMo et al. 2024, arXiv 2501.00656).
"""

from components.life.rehearsal import Reach
from components.spec.guard import Spike


def fire(fault: Spike, reach: Reach) -> None:
    """Put the largest id of the step's batch, a rare one, in the place of all."""
    reach.batch.fill_(reach.batch.max())
