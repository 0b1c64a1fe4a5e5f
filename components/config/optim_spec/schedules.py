"""Specifications of learning-rate schedules, which `components.optim.schedules` extends."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from components.config.schema.part import PartSpec
from components.ranges import Count, Share, Tokens


class ScheduleSpec(PartSpec):
    """Settings of any schedule."""


class ConstantSpec(ScheduleSpec):
    """Warm up linearly from ``warmup_from`` to ``value``, then stay constant."""

    target: ClassVar[str] = "components.optim.schedules.Constant"

    total_tokens: Count
    warmup_tokens: Tokens
    warmup_from: Share
    value: Share


class CosineSpec(ScheduleSpec):
    """Warm up from ``warmup_from`` to ``start``, then fall by half a cosine to ``end``."""

    target: ClassVar[str] = "components.optim.schedules.Cosine"

    total_tokens: Count
    warmup_tokens: Tokens
    warmup_from: Share
    start: Share
    end: Share
    planned_tokens: Count | None = None
    skipped_tokens: Tokens = 0


class WarmupStableDecaySpec(ScheduleSpec):
    """Warm up from ``warmup_from`` to ``start``, stay, and fall over ``decay_tokens``."""

    target: ClassVar[str] = "components.optim.schedules.WarmupStableDecay"

    total_tokens: Count
    warmup_tokens: Tokens
    decay_tokens: Count
    warmup_from: Share
    start: Share
    end: Share
    decay_shape: Literal["linear", "1-sqrt", "cosine", "exponential"]


class ChainSpec(ScheduleSpec):
    """Chain of schedules, in the order of ``phases``."""

    target: ClassVar[str] = "components.optim.schedules.Chain"

    phases: Annotated[Mapping[str, ScheduleSpec], Field(min_length=1)]
