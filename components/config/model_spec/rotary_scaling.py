"""Specifications of rotary scaling: linear, Llama 3's and YaRN."""

from typing import ClassVar

from components.config.schema.part import Absent, ModelPartSpec
from components.ranges import Count, Positive


class ScalingSpec(ModelPartSpec):
    """Settings of any scaling of rotary positions, for conversion."""

    factor: Positive
    original_tokens: Absent[Count | None] = None
    low_frequency_factor: Absent[Positive | None] = None
    high_frequency_factor: Absent[Positive | None] = None
    beta_fast: Absent[Positive | None] = None
    beta_slow: Absent[Positive | None] = None
    truncate: Absent[bool] = True


class LinearScalingSpec(ScalingSpec):
    """Linear scaling: divide all frequencies by ``factor``."""

    target: ClassVar[str] = "components.model.rotary_scaling.LinearScaling"


class Llama3ScalingSpec(ScalingSpec):
    """Llama 3.1's scaling: divide slow frequencies, keep fast ones."""

    target: ClassVar[str] = "components.model.rotary_scaling.Llama3Scaling"

    low_frequency_factor: Positive
    high_frequency_factor: Positive
    original_tokens: Count


class YarnScalingSpec(ScalingSpec):
    """YaRN: divide slow frequencies and sharpen attention."""

    target: ClassVar[str] = "components.model.rotary_scaling.YarnScaling"

    original_tokens: Count
    beta_fast: Positive
    beta_slow: Positive
    truncate: bool = True
