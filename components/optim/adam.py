"""Adam with coupled decay, which Megatron uses without CUDA, where apex is missing."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

from components.optim.adamw import can_fuse, parameter_groups
from components.ranges import BelowOne, NonNegative, Positive, Tokens


class Adam(torch.optim.Adam):
    """Adam, https://arxiv.org/abs/1412.6980, algorithm 1, with an L2 term.

    The decay is added to the gradient, ``g + weight_decay * w``, after the train step's
    clipping to ``clip_norm``, so it affects both moments. Other settings are as in `AdamW`.
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
        clip_norm: Positive,
        clip_after_tokens: Tokens,
    ) -> None:
        groups = parameter_groups(parameters, decay, weight_decay=weight_decay)
        super().__init__(groups, lr, (beta1, beta2), eps, fused=can_fuse(groups))
