"""Multi-token prediction: blocks after the last layer that predict tokens further ahead.

DeepSeek-V3's, https://arxiv.org/abs/2412.19437, section 2.2. At depth k the state of position i
and the embedding of token i + k, each through a norm of its own, are mapped to one vector; one
more layer and a norm make of it what the model's head compares with token i + k + 1. Depths are
chained. Embedding and head are the model's own.

The report writes ``[state; embedding]``. DeepSeek's weights (``eh_proj``) and Megatron-LM's
``multi_token_prediction.py`` have the embedding first, and so has ``projection``: other columns
of the same map. As in Megatron-LM a depth begins from states after the norm before the head.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from components.config.model_spec.mtp import MTPSpec
from components.config.model_spec.norms import NormSpec
from components.model.attention import ForwardScope
from components.model.layer import Layer
from components.model.products import Linear


class FurtherTokens(NamedTuple):
    """What one depth is given: each position's token, its target, and whether that counts."""

    tokens: Int[Tensor, "batch seq"]
    targets: Int[Tensor, "batch seq"]
    counted: Bool[Tensor, "batch seq"]


class PredictionDepth(nn.Module):
    """Make the states that predict one token further."""

    def __init__(self, *, dim: int, layer: Layer, norm: NormSpec) -> None:
        super().__init__()
        self.embedding_norm = norm.build(dim=dim)
        self.hidden_norm = norm.build(dim=dim)
        self.projection = Linear(2 * dim, dim, bias=False)
        self.layer = layer
        self.final_norm = norm.build(dim=dim)

    def forward(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        embedded: Float[Tensor, "batch seq dim"],
        scope: ForwardScope,
    ) -> Float[Tensor, "batch seq dim"]:
        both = torch.cat((self.embedding_norm(embedded), self.hidden_norm(hidden)), dim=-1)
        return cast("Tensor", self.final_norm(self.layer(self.projection(both), scope)))


class MultiTokenPrediction(nn.ModuleDict):
    """The depths, numbered on after the model's ``num_layers``.

    ``loss_weight`` times the mean of their losses is added to that of the model.
    """

    def __init__(
        self,
        spec: MTPSpec,
        *,
        dim: int,
        num_layers: int,
        layer: Callable[[], Layer],
        norm: NormSpec,
    ) -> None:
        numbers = range(num_layers, num_layers + spec.depth)
        super().__init__({
            str(number): PredictionDepth(dim=dim, layer=layer(), norm=norm)
            for number in numbers
        })
        self.loss_weight = spec.loss_weight
