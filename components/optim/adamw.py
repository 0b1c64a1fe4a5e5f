"""AdamW as pre-training uses it: two groups, decayed and not."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from components.errors import RecipeError

# Where torch has one kernel for the whole update; `meta` has none.
_FUSED_DEVICES = frozenset({"cpu", "cuda", "xpu"})


class AdamW(torch.optim.AdamW):
    """Update by Adam with decoupled decay, https://arxiv.org/abs/1711.05101, algorithm 2.

    As everywhere in torch, a step decays by ``lr * weight_decay``. ``decay: matrices`` spares
    parameters of one dimension (norms, biases) and no others, which is Megatron's rule. A
    parameter that comes under two names is updated once. ``clip_norm`` bounds the gradients'
    global norm; the train step, which knows all ranks, applies it.

    Raises:
        RecipeError: a value outside of its range.
    """

    def __init__(
        self,
        *,
        parameters: Iterable[tuple[str, nn.Parameter]],
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        decay: Literal["matrices", "all"],
        clip_norm: float,
    ) -> None:
        _check("beta1", beta1, 0.0 <= beta1 < 1.0, "from 0 up to, not including, 1")
        _check("beta2", beta2, 0.0 <= beta2 < 1.0, "from 0 up to, not including, 1")
        _check("lr", lr, lr > 0.0, "above 0")
        _check("eps", eps, eps > 0.0, "above 0")
        _check("weight_decay", weight_decay, weight_decay >= 0.0, "0 or above")
        _check("clip_norm", clip_norm, clip_norm > 0.0, "above 0")
        self.clip_norm = clip_norm
        unique = list({id(parameter): parameter for _, parameter in parameters}.values())
        super().__init__(
            _groups(unique, weight_decay, decay),
            lr=lr,
            betas=(beta1, beta2),
            eps=eps,
            fused=all(parameter.device.type in _FUSED_DEVICES for parameter in unique),
        )


def _groups(
    parameters: list[nn.Parameter], weight_decay: float, decay: Literal["matrices", "all"]
) -> list[dict[str, Any]]:
    spared = [p for p in parameters if decay == "matrices" and p.dim() < 2]
    spared_ids = {id(parameter) for parameter in spared}
    decayed = [p for p in parameters if id(p) not in spared_ids]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _check(name: str, value: float, holds: bool, rule: str) -> None:
    if not holds:
        raise RecipeError(
            f"optimizer.{name}", f"{value} is out of range", f"use a value {rule}"
        )
