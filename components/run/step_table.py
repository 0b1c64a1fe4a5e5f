"""Steps of a run as rows of numbers: a million steps take 96 MB instead of a gigabyte."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from components.run.records import StepMetrics

_COLUMNS = (
    "step",
    *(name for name in StepMetrics.model_fields if name not in {"kind", "step"}),
)
_WIDTH = len(_COLUMNS)
_NONE = -math.inf  # no loss is minus infinity


@dataclass(frozen=True)
class StepTable:
    """Sorted table of steps. Indexing creates a record and adds ``tokens_before`` to tokens."""

    values: "array[float]" = field(default_factory=lambda: array("d"))
    tokens_before: int = 0

    def __len__(self) -> int:
        return len(self.values) // _WIDTH

    def __iter__(self) -> Iterator[StepMetrics]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, place: int) -> StepMetrics:
        start = range(0, len(self.values), _WIDTH)[place]
        row: dict[str, Any] = dict(
            zip(_COLUMNS, self.values[start : start + _WIDTH], strict=True)
        )
        row |= {"step": int(row["step"]), "tokens": int(row["tokens"]) + self.tokens_before}
        row["mtp_loss"] = None if row["mtp_loss"] == _NONE else row["mtp_loss"]
        return StepMetrics.model_construct(kind="step", **row)

    def copy_column(self, name: str) -> "array[float]":
        """Return a copy of one column, 8 bytes per step."""
        figures = self.values[_COLUMNS.index(name) :: _WIDTH]
        if name == "tokens" and self.tokens_before:
            return array("d", (tokens + self.tokens_before for tokens in figures))
        return figures

    def insert_step(self, record: StepMetrics) -> None:
        """Insert a step in order. It replaces an earlier record of the same step."""
        start = stop = len(self.values)
        if start and self.values[-_WIDTH] >= record.step:
            start = _WIDTH * bisect_left(range(len(self)), record.step, key=self._step_at)
            stop = start + _WIDTH * (self.values[start] == record.step)
        row = (getattr(record, name) for name in _COLUMNS)
        self.values[start:stop] = array("d", (_NONE if x is None else x for x in row))

    def remove_after(self, step: int) -> "array[float]":
        """Remove the steps after ``step`` and return their seconds."""
        start = _WIDTH * bisect_right(range(len(self)), step, key=self._step_at)
        seconds = self.values[start + _COLUMNS.index("seconds") :: _WIDTH]
        del self.values[start:]
        return seconds

    def _step_at(self, place: int) -> int:
        return int(self.values[place * _WIDTH])
