"""A rank reads a batch that is no text: the loss leaps."""

import torch

from components.life.rehearsal import Reach
from components.spec.guard import Spike


def fire(fault: Spike, reach: Reach) -> None:
    """Shuffle the tokens of the step's batch: the same counts, no order to predict."""
    generator = torch.Generator().manual_seed(fault.step)
    flat = reach.batch.view(-1)
    order = torch.randperm(len(flat), generator=generator)
    flat.copy_(flat[order.to(flat.device)].clone())
