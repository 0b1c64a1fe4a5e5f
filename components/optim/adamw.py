"""AdamW as pre-training uses it: two groups, decayed and not; decay before or after."""

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import nn

from components.optim.groups import torch_arguments
from components.ranges import BelowOne, NonNegative, Positive, Tokens
from components.torch_internals.operators import multiply_


class AdamW(torch.optim.AdamW):
    """Update by Adam with decoupled decay, https://arxiv.org/abs/1711.05101, algorithm 2.

    As everywhere in torch, a step decays by ``lr * weight_decay``. ``decay_order: before``
    scales the old weight and then updates it, as torch and apex do; ``after`` scales the
    updated weight, ``(w - update) * (1 - lr * weight_decay)``, as Intel's Optimus does.
    ``decay: matrices`` spares norms and biases. A parameter that comes under two names is
    updated once. ``clip_norm`` bounds the gradients' global norm from ``clip_after_tokens``
    on; the train step, which knows all ranks and the clock, applies it.
    """

    def __init__(
        self,
        *,
        parameters: Iterable[tuple[str, nn.Parameter]],
        lr: Positive,
        beta1: BelowOne,
        beta2: BelowOne,
        eps: Positive,
        weight_decay: NonNegative,
        decay: Literal["matrices", "all"],
        decay_order: Literal["before", "after"],
        clip_norm: Positive,
        clip_after_tokens: Tokens,
    ) -> None:
        early, late = (weight_decay, 0.0) if decay_order == "before" else (0.0, weight_decay)
        arguments = torch_arguments(
            parameters,
            decay,
            decayed={"weight_decay": early, "late_decay": late},
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
        )
        super().__init__(**arguments)

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch overloads it; one signature answers both
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update, then decay what is to be decayed late; a parameter without gradient rests."""
        loss: float | None = super().step(closure)
        for group in self.param_groups:
            updated = [p for p in group["params"] if p.grad is not None]
            if group["late_decay"] > 0.0 and updated:
                multiply_(updated, 1.0 - group["lr"] * group["late_decay"])
        return loss
