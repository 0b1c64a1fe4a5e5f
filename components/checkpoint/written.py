"""A marker as it lies on disk, typed: its seal tells damage, but anybody can write one."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from components.run.records import Finite, Natural, Record

# A plain name: a marker may not lead a reader or a copy out of its folder.
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
_Section = Annotated[tuple[Natural, str], Field(strict=False)]
_Sections = Annotated[tuple[_Section, ...], Field(strict=False)]
_Pair = Annotated[tuple[Natural, Finite], Field(strict=False)]
_Count = Annotated[tuple[Natural, Natural], Field(strict=False)]


class _LossScale(Record):
    scale: Finite
    hysteresis_left: Natural
    good_steps: Natural


class _Figures(Record):
    loss: Annotated[tuple[float, ...], Field(strict=False)]
    gradient_norm: Annotated[tuple[float, ...], Field(strict=False)]


class _Guard(Record):
    figures: _Figures
    faults: Mapping[str, Annotated[tuple[Natural, ...], Field(strict=False)]]
    lowered: Annotated[tuple[_Pair, ...], Field(strict=False)]
    skipped: Annotated[tuple[_Count, ...], Field(strict=False)]


class _Progress(Record):
    step: Natural
    tokens: Natural
    loss_scale: _LossScale | None = None
    guard: _Guard | None = None


class Written(Record):
    """``progress.json``, but for its format and its seal."""

    kind: Literal["tokens", "weights"]
    fingerprint: str
    progress: _Progress
    held_out_loss: float | None
    files: Mapping[_Name, _Sections]
