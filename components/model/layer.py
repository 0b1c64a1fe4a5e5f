"""A layer of the decoder: attention and an MLP, each added to the residual stream."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.model.attention import Attention, ForwardScope
from components.model.kept import passing_on


class Layer(nn.Module):
    """Add attention, then an MLP, to the residual stream, each fed through its own norm.

    ``spec`` is the specification of the decoder, ``mlp`` the feed-forward part of this layer.
    ``in_graph`` says whether its parts are called within a compiled graph, without their hooks.
    """

    in_graph = False
    branch_multiplier = 1.0

    def __init__(self, spec: DecoderSpec, *, mlp: FeedForwardSpec) -> None:
        super().__init__()
        self.attention_norm = spec.norm.build(dim=spec.dim)
        self.attention: Attention = spec.attention.build(dim=spec.dim)
        self.mlp_norm = spec.norm.build(dim=spec.dim)
        self.mlp = mlp.build(dim=spec.dim)
        self.dropout = nn.Dropout(spec.dropout)

    @property
    def norms(self) -> list[nn.Module]:
        """The norms of whole hidden states: not those within attention."""
        return [self.attention_norm, self.mlp_norm]

    def forward(self, hidden: Float[Tensor, "batch seq dim"], scope: ForwardScope) -> Tensor:
        hidden = self._add(hidden, self.attention(self.attention_norm(hidden), scope))
        return self._add(hidden, passing_on(self.mlp(self.mlp_norm(hidden))))

    def _add(self, hidden: Tensor, branch: Tensor) -> Tensor:
        """Add what a branch gives to the residual stream, so many times."""
        return torch.add(hidden, self.dropout(branch), alpha=self.branch_multiplier)


class ReorderedLayer(Layer):
    """Norm what attention and the MLP give, before it is added, not what they are fed.

    The norms carry the same names: https://arxiv.org/abs/2501.00656, section 3.2.
    """

    @override
    def forward(self, hidden: Float[Tensor, "batch seq dim"], scope: ForwardScope) -> Tensor:
        hidden = self._add(hidden, self.attention_norm(self.attention(hidden, scope)))
        return self._add(hidden, self.mlp_norm(self.mlp(hidden)))


class SandwichLayer(Layer):
    """Norm what attention and the MLP are fed, and what they give before it is added.

    As in Gemma 3: https://arxiv.org/abs/2503.19786, section 2.
    """

    def __init__(self, spec: DecoderSpec, *, mlp: FeedForwardSpec) -> None:
        super().__init__(spec, mlp=mlp)
        self.attention_norm_after = spec.norm.build(dim=spec.dim)
        self.mlp_norm_after = spec.norm.build(dim=spec.dim)

    @property
    @override
    def norms(self) -> list[nn.Module]:
        return [*super().norms, self.attention_norm_after, self.mlp_norm_after]

    @override
    def forward(self, hidden: Float[Tensor, "batch seq dim"], scope: ForwardScope) -> Tensor:
        added = self.attention(self.attention_norm(hidden), scope)
        hidden = self._add(hidden, self.attention_norm_after(added))
        added = self.mlp(self.mlp_norm(hidden))
        return self._add(hidden, self.mlp_norm_after(added))


LAYERS: Mapping[str, type[Layer]] = {
    "before": Layer,
    "after": ReorderedLayer,
    "both": SandwichLayer,
}


def collect_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers of a model or a stage by number, those of multi-token depths last."""
    layers = dict(cast("nn.ModuleDict", model.layers).items())
    depths = getattr(model, "mtp", None) or {}
    return layers | {number: depth.layer for number, depth in depths.items()}
