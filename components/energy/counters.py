"""Energy counters: joules since some moment, added up, and for how much of the time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class EnergyReading:
    """What counters told of some devices, or hosts: an hour of four has 14,400 seconds."""

    joules: float
    counted_seconds: float  # those that the joules were taken in
    passed_seconds: float

    def __add__(self, other: "EnergyReading") -> "EnergyReading":
        return EnergyReading(
            joules=self.joules + other.joules,
            counted_seconds=self.counted_seconds + other.counted_seconds,
            passed_seconds=self.passed_seconds + other.passed_seconds,
        )

    @property
    def is_whole(self) -> bool:
        """Whether every device was counted all the time."""
        counted, passed = self.counted_seconds, self.passed_seconds
        return counted > 0 and math.isclose(counted, passed, rel_tol=1e-6)

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
        """Return the tree for JSON; joules that nothing counted are null, not 0."""
        return asdict(self) | ({} if self.counted_seconds else {"joules": None})

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "EnergyReading":
        """Read what `as_json` gave."""
        return cls(**{one.name: float(tree[one.name] or 0.0) for one in fields(cls)})


NOTHING = EnergyReading(joules=0.0, counted_seconds=0.0, passed_seconds=0.0)
# A bound for what one counter counts: at this power the kernel reckons how soon a register
# begins again (drivers/gpu/drm/i915/i915_hwmon.c: 32 bits of 2**-14 J in 4.36 minutes).
MOST_WATTS = 1_000.0


class NoCounterError(Exception):
    """Why no counter tells anything here, or did not just now."""


class EnergyCounter(Protocol):
    """Count joules up to ``range_joules``, then from zero again.

    Of two readings that are more than ``longest_seconds`` apart nobody knows how often it has
    begun again between them. Infinite where it never does.
    """

    range_joules: float
    longest_seconds: float

    def read(self) -> float:
        """Return the joules that are on the counter.

        Raises:
            NoCounterError: it does not tell.
        """


@dataclass(kw_only=True)
class FileCounter:
    """A file of the kernel's that holds microjoules."""

    file: Path
    range_joules: float
    longest_seconds: float

    def read(self) -> float:
        return read_joules(self.file)


def read_joules(file: Path) -> float:
    """Read a file that holds microjoules.

    Raises:
        NoCounterError: the file cannot be read, or holds no number.
    """
    try:
        return int(file.read_text("ascii")) * 1e-6
    except OSError as error:
        raise NoCounterError(f"{file}: {error.strerror}") from None
    except ValueError:
        raise NoCounterError(f"{file} holds no number") from None


class Meter:
    """Count the energy of ``units`` devices, or hosts, that ``counters`` count together.

    Time in which one of them did not tell, began again elsewhere than at its range, or was not
    read for too long is time without a count: its joules are missing, and so are its seconds.
    Without counters that is all the time. ``now`` is a clock in seconds that never goes back.
    """

    def __init__(self, *, counters: Sequence[EnergyCounter], units: int, now: float) -> None:
        self._counters, self._units = counters, units
        self._longest = min((one.longest_seconds for one in counters), default=math.inf)
        self._began = self._at = now
        self._before = self._readings()
        self._joules = self._seconds = 0.0

    def count(self, now: float) -> EnergyReading:
        """Read the counters, and tell what they have counted since the meter was made."""
        after, seconds = self._readings(), now - self._at
        spent = self._spent(after) if seconds <= self._longest else None
        if spent is not None:
            self._joules += spent
            self._seconds += seconds
        self._before, self._at = after, now
        return EnergyReading(
            joules=self._joules,
            counted_seconds=self._seconds * self._units,
            passed_seconds=(now - self._began) * self._units,
        )

    def keep_up(self, now: float) -> None:
        """Read the counters if by the next time they may have begun again."""
        if now - self._at > self._longest / 2:
            self.count(now)

    def _readings(self) -> list[float] | None:
        try:
            return [counter.read() for counter in self._counters]
        except NoCounterError:
            return None

    def _spent(self, after: list[float] | None) -> float | None:
        if not self._counters or self._before is None or after is None:
            return None
        spent = 0.0
        for counter, earlier, later in zip(self._counters, self._before, after, strict=True):
            # From an infinite range the sum is infinite: such a counter was set back.
            spent += later - earlier + (counter.range_joules if later < earlier else 0.0)
        return spent if math.isfinite(spent) else None
