"""Joules, and for how much of the time something counted them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What counters told of some devices, or hosts.

    Seconds are times their number: an hour of four devices has 14,400. ``counted_seconds`` are
    those that the joules were taken in, ``passed_seconds`` all.
    """

    joules: float
    counted_seconds: float
    passed_seconds: float

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(
            joules=self.joules + other.joules,
            counted_seconds=self.counted_seconds + other.counted_seconds,
            passed_seconds=self.passed_seconds + other.passed_seconds,
        )

    @property
    def is_whole(self) -> bool:
        """Whether every device was counted all the time."""
        return self.counted_seconds > 0 and math.isclose(
            self.counted_seconds, self.passed_seconds, rel_tol=1e-6
        )

    @property
    def watts(self) -> float | None:
        """The mean power of one device; None where nothing was counted."""
        return self.joules / self.counted_seconds if self.counted_seconds else None

    @property
    def fraction(self) -> float:
        """The part of the time in which something counted."""
        return self.counted_seconds / self.passed_seconds if self.passed_seconds else 0.0

    @property
    def kwh(self) -> float | None:
        return self.joules / JOULES_PER_KWH if self.counted_seconds else None

    def as_json(self) -> dict[str, float | None]:
        """Give it as data; joules that nothing counted are null, not 0."""
        return {
            "joules": self.joules if self.counted_seconds else None,
            "counted_seconds": self.counted_seconds,
            "passed_seconds": self.passed_seconds,
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Counted":
        """Read what `as_json` gave."""
        return cls(
            joules=float(tree["joules"] or 0.0),
            counted_seconds=float(tree["counted_seconds"]),
            passed_seconds=float(tree["passed_seconds"]),
        )


NOTHING = Counted(joules=0.0, counted_seconds=0.0, passed_seconds=0.0)
