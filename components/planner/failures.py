"""Failures to expect, what each loses, and the interval between checkpoints that loses least.

Young 1974, "A first order approximation to the optimum checkpoint interval" (Communications of
the ACM 17, 9): a failure falls anywhere in an interval, so half of it is lost on average. Daly
2006, "A higher order estimate of the optimum checkpoint interval for restart dumps" (Future
Generation Computer Systems 22, 3) has the restart beside it and what a failure costs while the
run makes up for another.
"""

from dataclasses import dataclass
from math import sqrt

HOUR = 3_600.0


@dataclass(frozen=True, kw_only=True)
class FailureTime:
    """Failures of a whole run and the seconds that each of them costs."""

    count: float
    each: float

    @property
    def total(self) -> float:
        return self.count * self.each


def mean_seconds_between(node_hours_between: float, nodes: int) -> float:
    """Return the mean time between failures of a job: nodes fail on their own."""
    return node_hours_between * HOUR / nodes


def expected_failures(
    *, work: float, interval: float, restart: float, between: float
) -> FailureTime | None:
    """Count the failures of ``work`` seconds and of the seconds that they cost themselves.

    T = work + T / between x (interval / 2 + restart). Nothing is returned where a failure
    costs as long as it takes for the next one to come: such a run does not end.
    """
    each = interval / 2 + restart
    if each >= between:
        return None
    return FailureTime(count=work / (between - each), each=each)


def best_interval(*, stall: float, between: float) -> float:
    """Return the seconds of work between checkpoints at which stalls and losses are least.

    sqrt(2 x stall x between) in Young 1974, where a stall is short beside ``between``.
    """
    return sqrt(2 * stall * between)
