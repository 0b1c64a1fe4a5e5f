"""A rank computes longer than its like, as a device does that is too hot."""

import time
from typing import Any

from torch import nn

from components.life.rehearsal import Reach
from components.spec.guard import SlowRank


def fire(fault: SlowRank, reach: Reach) -> None:
    """Burn time in every forward pass of the rank's first stage, for some steps."""
    passes = fault.steps * len(reach.batch)

    def burn(stage: nn.Module, inputs: Any) -> None:
        nonlocal passes
        passes -= 1
        if passes <= 0:
            handle.remove()
        until = time.thread_time() + fault.seconds
        while time.thread_time() < until:
            pass

    handle = reach.stages[0].register_forward_pre_hook(burn)
