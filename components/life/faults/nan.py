"""A rank computes what is no number, as a broken device does."""

from typing import Any

from torch import Tensor, nn

from components.life.rehearsal import Reach
from components.spec.guard import Nan


def fire(fault: Nan, reach: Reach) -> None:
    """Let the next pass through the rank's first stage come out as NaN."""

    def spoil(stage: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        handle.remove()
        return output * float("nan")

    handle = reach.stages[0].register_forward_hook(spoil)
