"""Specifications of parametrizations: muP and CompleteP."""

from typing import ClassVar

from components.config.schema.part import Absent, ModelPartSpec
from components.ranges import Count, Layers, Positive, Share


class MuPSpec(ModelPartSpec):
    """The base model, from which rates and first weights of other widths follow."""

    target: ClassVar[str] = "components.model.parametrization.MuP"
    is_partial: ClassVar[bool] = True

    base_dim: Count
    base_layers: Absent[Layers | None] = None
    depth_exponent: Absent[Share] = 1.0
    embedding_multiplier: Positive = 1.0
    output_multiplier: Positive = 1.0


class CompletePSpec(MuPSpec):
    """The base model of muP in width and depth."""

    target: ClassVar[str] = "components.model.parametrization.CompleteP"

    base_layers: Layers
    depth_exponent: Share = 1.0
