"""AdamW for pre-training: groups with and without decay; decay before or after the update."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn

from components.ranges import BelowOne, NonNegative, Positive, Tokens
from components.torch_internals.operators import multiply_

EMBEDDING = "embedding.weight"


def parameter_groups(
    parameters: Iterable[tuple[str, nn.Parameter]],
    decay: Literal["matrices", "all", "all_but_embedding"],
    **decayed: float,
) -> list[dict[str, Any]]:
    """Return parameter groups: one with the ``decayed`` settings, one with these settings at 0.

    ``matrices`` excludes parameters of one dimension (norms, biases) from decay, which is
    Megatron's rule. ``all_but_embedding`` excludes the embedding, and with it a tied head (OLMo
    2, https://arxiv.org/abs/2501.00656, section 3.3).
    """
    named = list(parameters)
    # Drop second names, keep the order: a tied matrix is updated once.
    unique = list({id(parameter): parameter for _, parameter in named}.values())
    undecayed = {id(p) for p in unique if decay == "matrices" and p.dim() < 2}
    if decay == "all_but_embedding":
        undecayed = {id(p) for name, p in named if name == EMBEDDING}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in unique if id(p) not in undecayed], **decayed},
        {"params": [p for p in unique if id(p) in undecayed], **dict.fromkeys(decayed, 0.0)},
    ]
    return [group for group in groups if group["params"]]


def can_fuse(groups: list[dict[str, Any]]) -> bool:
    """Return whether torch has a fused kernel for the update; `meta` has none."""
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    return devices <= {"cpu", "cuda", "xpu"}


class AdamW(torch.optim.AdamW):
    """AdamW: Adam with decoupled decay, https://arxiv.org/abs/1711.05101, algorithm 2.

    As in torch, a step decays by ``lr * weight_decay``. ``decay_order: before`` scales the old
    weight and then updates it, as torch and apex do; ``after`` scales the updated weight, ``(w
    - update) * (1 - lr * weight_decay)``, as Intel's Optimus does. `parameter_groups` defines
    ``decay``. The train step clips the global norm to ``clip_norm``, from
    ``clip_after_tokens``.
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
        decay: Literal["matrices", "all", "all_but_embedding"],
        decay_order: Literal["before", "after"],
        clip_norm: Positive,
        clip_after_tokens: Tokens,
    ) -> None:
        early, late = (weight_decay, 0.0) if decay_order == "before" else (0.0, weight_decay)
        groups = parameter_groups(parameters, decay, weight_decay=early, late_decay=late)
        super().__init__(groups, lr, (beta1, beta2), eps, fused=can_fuse(groups))

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch overloads it; one signature answers both
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update, then apply late decay; skip parameters without a gradient."""
        loss: float | None = super().step(closure)
        for group in self.param_groups:
            late = [p for p in group["params"] if p.grad is not None]
            if group["late_decay"] > 0.0 and late:
                multiply_(late, 1.0 - group["lr"] * group["late_decay"])
        return loss
