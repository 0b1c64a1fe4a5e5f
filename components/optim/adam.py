"""Adam with coupled decay, as Megatron uses it off CUDA, where apex is missing."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

from components.optim.adamw import can_fuse, parameter_groups
from components.ranges import BelowOne, NonNegative, Positive, Tokens


class Adam(torch.optim.Adam):
    """Update by Adam, https://arxiv.org/abs/1412.6980, algorithm 1, with an L2 term.

    The decay is part of the gradient, ``g + weight_decay * w``, and passes through both
    moments. ``decay`` is that of AdamW here. The train step bounds the gradients' global norm
    by ``clip_norm`` from ``clip_after_tokens`` on, before the decay enters.
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
