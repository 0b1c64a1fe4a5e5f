"""Multipliers, and parametrizations (muP, CompleteP) of weights, outputs and updates by size.

A recipe declares the width and the depth of a base model with tuned rates; the base's other
widths (heads, feed-forward, experts) are proportional to its ``dim``. A model of the base's
size is bitwise the same as without a parametrization.
"""

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from torch import nn

from components.config.model_spec.feed_forward import ROUTERS
from components.config.model_spec.parametrization import (
    CompletePSpec,
    MultipliersSpec,
    MuPSpec,
)

WeightKind = Literal["hidden", "router", "vector", "end"]


def weight_kind(name: str, dims: int) -> WeightKind:
    """Classify a parameter, by its global name, by the dimensions that scale with the width.

    ``hidden`` matrices, including experts, scale in both dimensions, a ``router`` (or a shared
    expert's gate) in its inputs. A ``vector`` in a layer (norms, biases) scales in one, and so
    does an ``end``: embedding, positions, head (its logits are divided instead), norms outside
    of layers.
    """
    *owners, last = name.split(".")
    if owners[0] != "layers":
        return "end"
    if last != "weight" or dims < 2:
        return "vector"
    return "router" if owners[-1] in ROUTERS else "hidden"


class UpdateFactors(NamedTuple):
    """Factors of the optimizer's settings for one parameter."""

    lr: float
    eps: float
    weight_decay: float


class Multipliers:
    """Fixed multipliers of embeddings, branches and logits, as in Granite.

    Published names: ``residual_multiplier`` is ``branch_multiplier``, ``logits_scaling`` is
    1 / ``output_multiplier``.
    """

    def __init__(self, spec: MultipliersSpec, *, dim: int, num_layers: int) -> None:
        factors = spec.compute_factors(dim, num_layers)
        self.embedding_multiplier = factors.embedding
        self.branch_multiplier = factors.branch
        self.output_multiplier = factors.output


class MuP(Multipliers):
    """The maximal update parametrization (muP), https://arxiv.org/abs/2203.03466, for Adam.

    With m = ``dim / base_dim``, hidden matrices have 1/m of the base's variance and rate, and
    logits are divided by m, as in EleutherAI's nanoGPT-mup and Megatron-LM's ``use_mup``.
    Weight decay is m times the base's, for the same shrinkage per step (microsoft's
    ``MuAdamW``). ``eps`` is 1/m of the base's, as the gradients are. A router has 1/m of the
    base's rate and deviation, like logits divided by m. More width is more heads of the same
    ``head_dim``: scores keep their scale. Embeddings and logits may have multipliers, tuned at
    the base.
    """

    depth = 1.0  # number of layers divided by the base's

    def __init__(self, spec: MuPSpec, *, dim: int, num_layers: int) -> None:
        super().__init__(spec, dim=dim, num_layers=num_layers)
        self.width = dim / spec.base_dim

    def std_factor(self, kind: WeightKind) -> float:
        """Return the factor of the initial standard deviation of a kind of weight."""
        if kind == "hidden":
            return 1.0 / math.sqrt(self.width)
        return 1.0 / self.width if kind == "router" else 1.0

    def update_factors(self, kind: WeightKind) -> UpdateFactors:
        """Return the factors of the optimizer's settings for a kind of weight."""
        m, lr, eps = self.width, 1.0, 1.0
        if kind != "end":
            lr, eps = self._depth_factors()
        if kind == "hidden":
            return UpdateFactors(lr / m, eps / m, m)
        if kind == "router":  # its gradient is m times as large as with divided logits
            return UpdateFactors(lr / m, eps, m)
        return UpdateFactors(lr, eps / m, 1.0)

    def _depth_factors(self) -> tuple[float, float]:
        """Return the factors of the rate and of ``eps`` in layers that depend on depth."""
        return 1.0, 1.0


class CompleteP(MuP):
    """CompleteP, muP in depth, too: https://arxiv.org/abs/2505.01618, table 1, equation 40.

    With L = ``num_layers / base_layers`` and a ``depth_exponent`` a from 0.5 to 1 (CompleteP is
    1), the output of each branch is multiplied by ``L^-a``, the rates of all weights in layers
    by ``L^(a - 1)``, their ``eps`` by ``L^-a``. Residual projections have the same initial
    deviation as others. Authors' code: branch ``completep`` of EleutherAI's nanoGPT-mup.
    """

    def __init__(self, spec: CompletePSpec, *, dim: int, num_layers: int) -> None:
        super().__init__(spec, dim=dim, num_layers=num_layers)
        self.depth = num_layers / spec.base_layers
        self.depth_exponent = spec.depth_exponent

    def _depth_factors(self) -> tuple[float, float]:
        return math.pow(self.depth, self.depth_exponent - 1.0), self.branch_multiplier


def factors_of(
    parametrization: MuP, named: Iterable[tuple[str, nn.Parameter]]
) -> dict[nn.Parameter, UpdateFactors]:
    """Return the update factors of each named parameter."""
    return {
        parameter: parametrization.update_factors(weight_kind(name, parameter.dim()))
        for name, parameter in named
    }
