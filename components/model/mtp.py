"""Multi-token prediction (MTP): blocks after the last layer that predict further tokens.

As in DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.2. At depth k the state of
position i and the embedding of token i + k, each after its own norm, are projected to one
vector. One more layer and a norm turn it into the state from which the model's head predicts
token i + k + 1. Depths are chained. They share the model's embedding and head.

The report writes ``[state; embedding]``; DeepSeek's weights (``eh_proj``), Megatron-LM's
``multi_token_prediction.py`` and ``projection`` here have the embedding first. As in
Megatron-LM, a depth reads states after the norm before the head.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from components.config.model_spec.mtp import MTPSpec
from components.config.model_spec.norms import NormSpec
from components.model.attention import AttentionContext
from components.model.layer import Layer
from components.model.linear import Linear


class MTPTargets(NamedTuple):
    """Inputs of one MTP depth: each position's token, its target, and whether it counts."""

    tokens: Int[Tensor, "batch seq"]
    targets: Int[Tensor, "batch seq"]
    counted: Bool[Tensor, "batch seq"]


class PredictionDepth(nn.Module):
    """MTP depth: computes the states that predict one token further."""

    def __init__(self, *, dim: int, layer: Layer, norm: NormSpec) -> None:
        super().__init__()
        self.embedding_norm = norm.build_part(dim=dim)
        self.hidden_norm = norm.build_part(dim=dim)
        self.projection = Linear(2 * dim, dim, bias=False)
        self.layer = layer
        self.final_norm = norm.build_part(dim=dim)

    def forward(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        embedded: Float[Tensor, "batch seq dim"],
        scope: AttentionContext,
    ) -> Float[Tensor, "batch seq dim"]:
        combined = torch.cat((self.embedding_norm(embedded), self.hidden_norm(hidden)), dim=-1)
        return cast("Tensor", self.final_norm(self.layer(self.projection(combined), scope)))


class MultiTokenPrediction(nn.ModuleDict):
    """MTP depths, numbered from ``num_layers``; ``loss_weight`` scales their mean loss."""

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
