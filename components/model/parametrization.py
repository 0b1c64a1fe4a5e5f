"""How first weights, the forward pass and updates follow the width and the depth.

A base model, whose rates were tuned, is declared by its width, and its depth; all other widths
of it (heads, feed-forward, experts) stand in the same proportion to its ``dim``. At the base
everything is as without a parametrization, bit for bit.
"""

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from torch import nn

from components.config.model_spec.parametrization import CompletePSpec, MuPSpec

WeightKind = Literal["hidden", "router", "vector", "end"]


def weight_kind(name: str, dims: int) -> WeightKind:
    """Sort a parameter by which of its sides grow with the width, by its global name.

    Both sides of a ``hidden`` matrix do, an expert's too; the inputs of a ``router`` do. Of a
    ``vector`` in a layer (norms, biases) one does, and of an ``end``: embedding, positions,
    head, whose logits are divided instead, and the norms beside them.
    """
    *owners, last = name.split(".")
    if owners[0] != "layers":
        return "end"
    if last != "weight" or dims < 2:
        return "vector"
    return "router" if owners[-1] == "router" else "hidden"


class UpdateFactors(NamedTuple):
    """What the settings of an optimizer are multiplied by, for one parameter."""

    lr: float
    eps: float
    weight_decay: float


class MuP:
    """The maximal update parametrization (muP), https://arxiv.org/abs/2203.03466, for Adam.

    With m = ``dim / base_dim``, hidden matrices have 1/m of the base's variance and rate, and
    logits are divided by m, as in EleutherAI's nanoGPT-mup and by Megatron-LM's ``use_mup``. A
    decay of m times the base's leaves a step's shrinkage as it is (microsoft's ``MuAdamW``);
    ``eps`` follows the gradients, which are 1/m of the base's. A router gives as many numbers
    at any width: with 1/m of the base's rate and deviation it does what it would if its logits
    were divided by m. Widths grow by heads: the scale of scores, ``1 / head_dim`` times the
    root of the base's, stays what it is. What is embedded and the logits may have multipliers,
    tuned at the base.
    """

    branch_multiplier = 1.0
    depth = 1.0  # layers for each of the base's

    def __init__(self, spec: MuPSpec, *, dim: int, num_layers: int) -> None:
        self.width = dim / spec.base_dim
        self.embedding_multiplier = spec.embedding_multiplier
        self.output_multiplier = spec.output_multiplier / self.width

    def std_factor(self, kind: WeightKind) -> float:
        """Return what multiplies the deviation of a kind of first weights."""
        if kind == "hidden":
            return 1.0 / math.sqrt(self.width)
        return 1.0 / self.width if kind == "router" else 1.0

    def update_factors(self, kind: WeightKind) -> UpdateFactors:
        """Return what multiplies the optimizer's settings for a kind of weight."""
        m, lr, eps = self.width, 1.0, 1.0
        if kind != "end":
            lr, eps = self._depth_factors()
        if kind == "hidden":
            return UpdateFactors(lr / m, eps / m, m)
        if kind == "router":  # its gradient is m times that of one with divided logits
            return UpdateFactors(lr / m, eps, m)
        return UpdateFactors(lr, eps / m, 1.0)

    def _depth_factors(self) -> tuple[float, float]:
        """Return what depth does to the rate and to ``eps`` in layers."""
        return 1.0, 1.0


class CompleteP(MuP):
    """MuP in depth, too: https://arxiv.org/abs/2505.01618, table 1 and equation 40.

    With L = ``num_layers / base_layers`` and a ``depth_exponent`` a from 0.5 to 1 (CompleteP is
    1), what a branch adds to the residual stream is multiplied by ``L^-a``, the rates of all in
    layers by ``L^(a - 1)``, their ``eps`` by ``L^-a``. Maps onto the residual stream begin as
    wide as others. The authors' code is the branch ``completep`` of EleutherAI's nanoGPT-mup.
    """

    def __init__(self, spec: CompletePSpec, *, dim: int, num_layers: int) -> None:
        super().__init__(spec, dim=dim, num_layers=num_layers)
        self.depth = num_layers / spec.base_layers
        self.depth_exponent = spec.depth_exponent
        self.branch_multiplier = math.pow(self.depth, -self.depth_exponent)

    def _depth_factors(self) -> tuple[float, float]:
        return math.pow(self.depth, self.depth_exponent - 1.0), self.branch_multiplier


def factors_of(
    parametrization: MuP, named: Iterable[tuple[str, nn.Parameter]]
) -> dict[nn.Parameter, UpdateFactors]:
    """Map parameters, each with its global name, to their factors."""
    return {
        one: parametrization.update_factors(weight_kind(name, one.dim())) for name, one in named
    }
