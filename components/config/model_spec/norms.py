"""Specification of a norm: RMSNorm or LayerNorm."""

from typing import ClassVar

from components.config.schema.part import ModelPartSpec
from components.ranges import NonNegative


class NormSpec(ModelPartSpec):
    """Settings of RMSNorm, or of LayerNorm with ``center``; equal settings compare equal."""

    target: ClassVar[str] = "components.model.norms.Norm"
    is_partial: ClassVar[bool] = True

    eps: NonNegative
    center: bool
    weight: bool
    bias: bool

    def count_parameters(self, width: int) -> int:
        """Count the parameters of a norm over ``width`` channels."""
        return width * (self.weight + self.bias)

    @property
    def norm_label(self) -> str:
        """Name of the norm and of its parameters."""
        vectors = [name for name in ("weight", "bias") if getattr(self, name)]
        name = "LayerNorm" if self.center else "RMSNorm"
        return f"{name} with {' and '.join(vectors) or 'no parameters'}"

    def __str__(self) -> str:
        return f"{self.norm_label}, eps {self.eps:g}"
