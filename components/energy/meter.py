"""Add up what counters tell, and know for how much of the time they told it."""

import math
from collections.abc import Sequence

from components.energy.counted import Counted
from components.energy.counters import Counter, NoCounterError


class Meter:
    """Count the energy of ``units`` devices, or hosts, that ``counters`` count together.

    Time in which one of them did not tell, began again elsewhere than at its range, or was not
    read for too long is time without a count: its joules are missing, and so are its seconds.
    Without counters that is all the time. ``now`` is a clock in seconds that never goes back.
    """

    def __init__(self, *, counters: Sequence[Counter], units: int, now: float) -> None:
        self._counters = counters
        self._units = units
        self._longest = min((one.longest_seconds for one in counters), default=math.inf)
        self._began = self._at = now
        self._before = self._readings()
        self._joules = 0.0
        self._seconds = 0.0

    def count(self, now: float) -> Counted:
        """Read the counters, and tell what they have counted since the meter was made."""
        after, seconds = self._readings(), now - self._at
        spent = self._spent(after) if seconds <= self._longest else None
        if spent is not None:
            self._joules += spent
            self._seconds += seconds
        self._before, self._at = after, now
        return Counted(
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
        """Return the joules since the last readings, if that is known."""
        if not self._counters or self._before is None or after is None:
            return None
        spent = 0.0
        for counter, earlier, later in zip(self._counters, self._before, after, strict=True):
            # From an infinite range the sum is infinite: such a counter was set back.
            spent += later - earlier + (counter.range_joules if later < earlier else 0.0)
        return spent if math.isfinite(spent) else None
