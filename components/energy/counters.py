"""Energy counters: joules since a start, summed over devices, and the time they cover."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class EnergyReading:
    """Energy of devices or hosts. Seconds are device-seconds: an hour of four has 14,400."""

    joules: float
    counted_seconds: float  # the time that the joules cover
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
    def mean_watts(self) -> float | None:
        """The mean power of one device, or None if nothing was counted."""
        return self.joules / self.counted_seconds if self.counted_seconds else None

    @property
    def counted_fraction(self) -> float:
        """The fraction of the time that was counted."""
        return self.counted_seconds / self.passed_seconds if self.passed_seconds else 0.0

    @property
    def energy_kwh(self) -> float | None:
        return self.joules / JOULES_PER_KWH if self.counted_seconds else None

    def as_json(self) -> dict[str, float | None]:
        """Return the tree for JSON. Joules are null, not 0, if nothing was counted."""
        return asdict(self) | ({} if self.counted_seconds else {"joules": None})

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "EnergyReading":
        """Read the result of `as_json`."""
        return cls(**{field.name: float(tree[field.name] or 0.0) for field in fields(cls)})


NOTHING = EnergyReading(joules=0.0, counted_seconds=0.0, passed_seconds=0.0)
# Upper bound for the power of one counter. The kernel assumes it to compute how soon a register
# overflows (drivers/gpu/drm/i915/i915_hwmon.c: 32 bits of 2**-14 J in 4.36 minutes).
MOST_WATTS = 1_000.0


class NoCounterError(Exception):
    """Reason why no counter is available, or why a reading failed."""


class EnergyCounter(Protocol):
    """Energy counter that counts joules up to ``range_joules``, then restarts at zero.

    Between two readings more than ``longest_seconds`` apart, the number of restarts is unknown.
    Both values are infinite for a counter that never restarts.
    """

    range_joules: float
    longest_seconds: float

    def read_joules(self) -> float:
        """Return the counter's current joules, or raise NoCounterError."""


@dataclass(kw_only=True)
class FileCounter:
    """File that starts with a number of ``unit`` joules. Kernel files have microjoules."""

    file: Path
    unit: float = 1e-6
    range_joules: float = math.inf
    longest_seconds: float = math.inf

    def read_joules(self) -> float:
        try:
            return float(self.file.read_text("ascii").split()[0]) * self.unit
        except OSError as error:
            raise NoCounterError(f"{self.file}: {error.strerror}") from None
        except (ValueError, IndexError):
            raise NoCounterError(f"{self.file} is not a number") from None


class Meter:
    """Meter of the energy of ``units`` devices or hosts, which ``counters`` count together.

    A period does not count, neither its joules nor its seconds, if a reading failed, a counter
    was reset, or readings were too far apart. Without counters, no period counts. ``now`` is a
    monotonic clock in seconds.
    """

    def __init__(self, *, counters: Sequence[EnergyCounter], units: int, now: float) -> None:
        self._counters, self._units = counters, units
        self._longest = min((counter.longest_seconds for counter in counters), default=math.inf)
        self._began = self._at = now
        self._before = self._readings()
        self._joules = self._seconds = 0.0

    def measure_energy(self, now: float) -> EnergyReading:
        """Read the counters and return the energy since the meter was created."""
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
        """Read the counters if they may overflow before the next call."""
        if now - self._at > self._longest / 2:
            self.measure_energy(now)

    def _readings(self) -> list[float] | None:
        try:
            return [counter.read_joules() for counter in self._counters]
        except NoCounterError:
            return None

    def _spent(self, after: list[float] | None) -> float | None:
        if not self._counters or self._before is None or after is None:
            return None
        spent = 0.0
        for counter, earlier, later in zip(self._counters, self._before, after, strict=True):
            # With an infinite range the sum is infinite: the counter was reset.
            spent += later - earlier + (counter.range_joules if later < earlier else 0.0)
        return spent if math.isfinite(spent) else None
