"""What the optimizers of this folder share: parameter groups, the kernel."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from torch import nn

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
) -> TorchArguments:
    """Put a recipe's values as torch wants them.

    The group of the decayed parameters has the settings ``decayed``; in the other they are 0.
    """
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
