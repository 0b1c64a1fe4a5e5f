"""Specification of multi-token prediction."""

from typing import ClassVar

from components.config.schema.part import ModelPartSpec
from components.ranges import Layers, Positive


class MTPSpec(ModelPartSpec):
    """Multi-token prediction with ``depth`` blocks after the last layer."""

    target: ClassVar[str] = "components.model.mtp.MultiTokenPrediction"
    is_partial: ClassVar[bool] = True

    depth: Layers
    loss_weight: Positive
