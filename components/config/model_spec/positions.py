"""Specifications of position encodings: rotary, ALiBi or learned."""

from typing import ClassVar

from components.config.model_spec.rotary_scaling import ScalingSpec
from components.config.schema.part import Absent, ModelPartSpec
from components.ranges import Count, Layers, Positive, PositiveShare


class PositionsSpec(ModelPartSpec):
    """Settings of any position encoding, for parameter counts and conversion."""

    is_partial: ClassVar[bool] = True
    has_slopes: ClassVar[bool] = False  # whether scores fall with distance

    num_positions: Absent[Count | None] = None
    base: Absent[Positive | None] = None
    scaling: Absent[ScalingSpec | None] = None
    local_base: Absent[Positive | None] = None
    skip_every: Absent[Layers | None] = None
    rotary_fraction: Absent[PositiveShare] = 1.0

    def rotary_width(self, head_dim: int) -> int:
        """Return the channels of a head that RoPE rotates: the fraction, in whole pairs."""
        if self.rotary_fraction == 1:
            return head_dim
        return max(2, 2 * round(head_dim * self.rotary_fraction / 2))

    def turned_layers(self, num_layers: int) -> int:
        """Count the layers that rotate queries and keys."""
        if self.base is None:
            return 0
        return num_layers - (num_layers // self.skip_every if self.skip_every else 0)


class OrderSpec(PositionsSpec):
    """No position encoding: the order of tokens follows only from the causal mask."""

    target: ClassVar[str] = "components.model.positions.Positions"


class RotarySpec(PositionsSpec):
    """Rotary positions of the first ``rotary_fraction`` of a head's channels.

    Layers with a window may have another base (``local_base``).
    """

    target: ClassVar[str] = "components.model.positions.Rotary"

    base: Positive
    scaling: ScalingSpec | None = None
    local_base: Positive | None = None
    rotary_fraction: PositiveShare = 1.0


class InterleavedRotarySpec(RotarySpec):
    """Rotary positions in all layers except every ``skip_every``-th."""

    target: ClassVar[str] = "components.model.positions.InterleavedRotary"

    skip_every: Layers


class AlibiSpec(PositionsSpec):
    """ALiBi: scores fall linearly with distance."""

    target: ClassVar[str] = "components.model.positions.Alibi"
    has_slopes: ClassVar[bool] = True


class LearnedSpec(PositionsSpec):
    """Learned positions: a trained vector for each of ``num_positions`` positions."""

    target: ClassVar[str] = "components.model.positions.Learned"

    num_positions: Count
