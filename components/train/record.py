"""What one step reports, to the journal, the display and whoever else listens."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepRecord:
    """What one step reports, as means over all microbatches and ranks.

    ``loss`` is the cross-entropy alone; ``expert_load`` the busiest expert's tokens over the
    mean, 1 for a dense model.
    """

    step: int
    tokens: int
    loss: float
    auxiliary_loss: float
    expert_load: float
    lr: float
    gradient_norm: float
    seconds: float
    tokens_per_second: float
    samples_digest: int
    loss_scale: float
