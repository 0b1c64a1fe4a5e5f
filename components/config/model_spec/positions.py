"""Specifications of position encodings: rotary, ALiBi or learned."""

from typing import ClassVar

from components.config.model_spec.rotary_scaling import ScalingSpec
from components.config.schema.part import Absent, ModelPartSpec
from components.ranges import Count, Layers, Positive


class PositionsSpec(ModelPartSpec):
    """What arithmetic and conversion ask of any position encoding."""

    is_partial: ClassVar[bool] = True
    has_slopes: ClassVar[bool] = False  # whether it lowers scores by distance

    num_positions: Absent[Count | None] = None
    base: Absent[Positive | None] = None
    scaling: Absent[ScalingSpec | None] = None
    local_base: Absent[Positive | None] = None
    skip_every: Absent[Layers | None] = None

    def turned_layers(self, num_layers: int) -> int:
        """Count the layers that rotate queries and keys."""
        if self.base is None:
            return 0
        return num_layers - (num_layers // self.skip_every if self.skip_every else 0)


class OrderSpec(PositionsSpec):
    """No encoding: tokens have their order alone, from the causal mask."""

    target: ClassVar[str] = "components.model.positions.Positions"


class RotarySpec(PositionsSpec):
    """Rotary positions; layers with a window may have a base of their own."""

    target: ClassVar[str] = "components.model.positions.Rotary"

    base: Positive
    scaling: ScalingSpec | None = None
    local_base: Positive | None = None


class InterleavedRotarySpec(RotarySpec):
    """Rotary positions in all layers but each ``skip_every``-th."""

    target: ClassVar[str] = "components.model.positions.InterleavedRotary"

    skip_every: Layers


class AlibiSpec(PositionsSpec):
    """ALiBi: scores fall in proportion to distance."""

    target: ClassVar[str] = "components.model.positions.Alibi"
    has_slopes: ClassVar[bool] = True


class LearnedSpec(PositionsSpec):
    """A trained vector for each of ``num_positions`` places."""

    target: ClassVar[str] = "components.model.positions.Learned"

    num_positions: Count
