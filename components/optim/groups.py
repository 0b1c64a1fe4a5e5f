"""What all optimizers of this folder share: parameter groups, ranges, the kernel."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from torch import nn

from components.errors import RecipeError

# Where torch has one kernel for the whole update; `meta` has none.
_FUSED_DEVICES = frozenset({"cpu", "cuda", "xpu"})


def unique_parameters(parameters: Iterable[tuple[str, nn.Parameter]]) -> list[nn.Parameter]:
    """Drop second names, in the order given: a tied matrix is updated once."""
    return list({id(parameter): parameter for _, parameter in parameters}.values())


def has_fused_kernel(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether one kernel can run the whole update where these parameters are."""
    return all(parameter.device.type in _FUSED_DEVICES for parameter in parameters)


def split_by_decay(
    parameters: Sequence[nn.Parameter],
    decay: Literal["matrices", "all"],
    *,
    decayed: Mapping[str, float],
    spared: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Give decayed and spared parameters the settings ``decayed`` and ``spared``.

    ``matrices`` spares parameters of one dimension (norms, biases) and no others, which is
    Megatron's rule. A group without parameters is left out.
    """
    spares = {id(p) for p in parameters if decay == "matrices" and p.dim() < 2}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if id(p) not in spares], **decayed},
        {"params": [p for p in parameters if id(p) in spares], **spared},
    ]
    return [group for group in groups if group["params"]]


def check_ranges(
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    clip_norm: float,
    clip_after_tokens: int,
) -> None:
    """Refuse values with which no update makes sense.

    Raises:
        RecipeError: a value outside of its range, NaN included.
    """
    _check("beta1", beta1, 0.0 <= beta1 < 1.0, "from 0 up to, not including, 1")
    _check("beta2", beta2, 0.0 <= beta2 < 1.0, "from 0 up to, not including, 1")
    _check("lr", lr, lr > 0.0, "above 0")
    _check("eps", eps, eps > 0.0, "above 0")
    _check("weight_decay", weight_decay, weight_decay >= 0.0, "0 or above")
    _check("clip_norm", clip_norm, clip_norm > 0.0, "above 0")
    _check("clip_after_tokens", clip_after_tokens, clip_after_tokens >= 0, "0 or above")


def _check(name: str, value: float, holds: bool, rule: str) -> None:
    if not holds:
        raise RecipeError(
            f"optimizer.{name}", f"{value} is out of range", f"use a value {rule}"
        )
