"""Specifications of fixed multipliers, and of parametrizations with them: muP and CompleteP."""

import math
from typing import ClassVar, NamedTuple

from components.config.schema.part import Absent, ModelPartSpec
from components.ranges import Count, Layers, Positive, Share


class ForwardFactors(NamedTuple):
    """Factors of embedded tokens, of the output of each branch, and of logits."""

    embedding: float
    branch: float
    output: float


UNIT_FACTORS = ForwardFactors(1.0, 1.0, 1.0)


class MultipliersSpec(ModelPartSpec):
    """Fixed multipliers of embeddings, branches and logits, as in Granite.

    They change neither learning rates nor initial weights.
    """

    target: ClassVar[str] = "components.model.parametrization.Multipliers"
    is_partial: ClassVar[bool] = True

    embedding_multiplier: Positive = 1.0
    output_multiplier: Positive = 1.0
    branch_multiplier: Positive = 1.0
    base_dim: Absent[Count | None] = None
    base_layers: Absent[Layers | None] = None
    depth_exponent: Absent[Share] = 1.0

    def compute_factors(self, dim: int, num_layers: int) -> ForwardFactors:
        """Return the factors in a model of this width and depth."""
        return ForwardFactors(
            self.embedding_multiplier, self.branch_multiplier, self.output_multiplier
        )


class MuPSpec(MultipliersSpec):
    """Base model of muP, which determines learning rates and initial weights at any width."""

    target: ClassVar[str] = "components.model.parametrization.MuP"

    base_dim: Count
    branch_multiplier: Absent[Positive] = 1.0

    def compute_factors(self, dim: int, num_layers: int) -> ForwardFactors:
        """Return the factors: logits are divided by the width relative to the base's."""
        output = self.output_multiplier / (dim / self.base_dim)
        return ForwardFactors(self.embedding_multiplier, 1.0, output)


class CompletePSpec(MuPSpec):
    """Base model of CompleteP: muP in width and depth."""

    target: ClassVar[str] = "components.model.parametrization.CompleteP"

    base_layers: Layers
    depth_exponent: Share = 1.0

    def compute_factors(self, dim: int, num_layers: int) -> ForwardFactors:
        """Return the factors: branches are divided by a power of the relative depth."""
        branch = math.pow(num_layers / self.base_layers, -self.depth_exponent)
        return super().compute_factors(dim, num_layers)._replace(branch=branch)
