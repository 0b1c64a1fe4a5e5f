"""The activations of the feed-forward parts, dense or of experts, with their derivatives."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Activation(NamedTuple):
    """Hold a function and, for passes backward written by hand, its derivative.

    ``name`` finds it again in `ACTIVATIONS`: operators take strings, not functions.
    """

    name: str
    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]  # (gradient, input) -> gradient


ACTIVATIONS: Mapping[str, Activation] = {
    "silu": Activation("silu", F.silu, torch.ops.aten.silu_backward),
    "gelu": Activation("gelu", F.gelu, torch.ops.aten.gelu_backward),
    "gelu_tanh": Activation(  # what Megatron's fused GELU computes
        "gelu_tanh",
        partial(F.gelu, approximate="tanh"),
        partial(torch.ops.aten.gelu_backward, approximate="tanh"),
    ),
}
