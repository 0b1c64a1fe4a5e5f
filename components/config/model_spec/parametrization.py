"""Specifications of parametrizations: muP and CompleteP."""

from typing import ClassVar

from components.config.schema.part import Absent, ModelPartSpec
from components.ranges import Count, Layers, Positive, Share


class MuPSpec(ModelPartSpec):
    """Base model of muP, which determines learning rates and initial weights at any width."""

    target: ClassVar[str] = "components.model.parametrization.MuP"
    is_partial: ClassVar[bool] = True

    base_dim: Count
    base_layers: Absent[Layers | None] = None
    depth_exponent: Absent[Share] = 1.0
    embedding_multiplier: Positive = 1.0
    output_multiplier: Positive = 1.0


class CompletePSpec(MuPSpec):
    """Base model of CompleteP: muP in width and depth."""

    target: ClassVar[str] = "components.model.parametrization.CompleteP"

    base_layers: Layers
    depth_exponent: Share = 1.0
