"""What the optimizers of this folder share: checked values, parameter groups, the kernel."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from torch import nn

from components.errors import RecipeError

# Where torch has one kernel for the whole update; `meta` has none.
_FUSED_DEVICES = frozenset({"cpu", "cuda", "xpu"})


class TorchArguments(TypedDict):
    """What torch's own ``Adam`` and ``AdamW`` are constructed from."""

    params: list[dict[str, Any]]
    lr: float
    betas: tuple[float, float]
    eps: float
    fused: bool


def torch_arguments(
    parameters: Iterable[tuple[str, nn.Parameter]],
    decay: Literal["matrices", "all"],
    *,
    decayed: Mapping[str, float],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    clip_norm: float,
    clip_after_tokens: int,
) -> TorchArguments:
    """Check a recipe's values and put them as torch wants them.

    The group of the decayed parameters has the settings ``decayed``; in the other they are 0.
    The values of clipping are checked only: the train step clips.

    Raises:
        RecipeError: a value with which no update makes sense, NaN included.
    """
    _check("beta1", beta1, 0.0 <= beta1 < 1.0, "from 0 up to, not including, 1")
    _check("beta2", beta2, 0.0 <= beta2 < 1.0, "from 0 up to, not including, 1")
    _check("lr", lr, lr > 0.0, "above 0")
    _check("eps", eps, eps > 0.0, "above 0")
    _check("weight_decay", weight_decay, weight_decay >= 0.0, "0 or above")
    _check("clip_norm", clip_norm, clip_norm > 0.0, "above 0")
    _check("clip_after_tokens", clip_after_tokens, clip_after_tokens >= 0, "0 or above")
    # Second names dropped, in the order given: a tied matrix is updated once.
    unique = list({id(parameter): parameter for _, parameter in parameters}.values())
    return TorchArguments(
        params=_split_by_decay(unique, decay, decayed),
        lr=lr,
        betas=(beta1, beta2),
        eps=eps,
        fused=all(parameter.device.type in _FUSED_DEVICES for parameter in unique),
    )


def _split_by_decay(
    parameters: Sequence[nn.Parameter],
    decay: Literal["matrices", "all"],
    decayed: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Divide the parameters into decayed and spared ones.

    ``matrices`` spares parameters of one dimension (norms, biases) and no others, which is
    Megatron's rule. A group without parameters is left out.
    """
    spares = {id(p) for p in parameters if decay == "matrices" and p.dim() < 2}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if id(p) not in spares], **decayed},
        {"params": [p for p in parameters if id(p) in spares], **dict.fromkeys(decayed, 0.0)},
    ]
    return [group for group in groups if group["params"]]


def _check(name: str, value: float, holds: bool, rule: str) -> None:
    if not holds:
        raise RecipeError(
            f"optimizer.{name}", f"{value} is out of range", f"use a value {rule}"
        )
