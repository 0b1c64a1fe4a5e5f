"""Intervals by the bootstrap: whole runs are drawn anew, never checkpoints of one run.

Checkpoints of a run are not independent: intervals from them would be too narrow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from components.errors import RecipeError
from components.scaling.fit import constants_of, fit_law
from components.scaling.law import Law, Runs

DRAWN = 200
LEVEL = 0.90
MOST_FAILED = 0.5  # of the draws: then the runs carry no interval
SEED = 42


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Between ``low`` and ``high`` lie 90 % of the drawn fits."""

    low: float
    high: float

    def has(self, value: float) -> bool:
        """Whether a value lies inside."""
        return self.low <= value <= self.high


def drawn_laws(runs: Runs, law: Law, draws: int = DRAWN, seed: int = SEED) -> list[Law]:
    """Fit ``draws`` samples of the runs, with replacement, each from the fit of all.

    Samples of too few sizes or lengths, or whose fit is no law, are drawn again. Of few runs
    many samples have fewer that differ than constants: their fits stay near the one that they
    start from, and the interval is too narrow.

    Raises:
        RecipeError: most samples have none.
    """
    generator, found, failed = np.random.default_rng(seed), list[Law](), 0
    start = constants_of(law)
    while len(found) < draws:
        sample = runs[generator.integers(len(runs), size=len(runs))]
        try:
            found.append(fit_law(sample, [start]))
        except RecipeError:
            failed += 1
        if failed > draws * MOST_FAILED / (1 - MOST_FAILED):
            problem = f"of {len(runs)} runs most samples tell no law: there is no interval"
            raise RecipeError("study", problem, "train more sizes and lengths")
    return found


def interval(laws: Sequence[Law], figure: Callable[[Law], float]) -> Interval:
    """Return between what a figure of the drawn laws lies, by percentiles."""
    values = [figure(one) for one in laws]
    low, high = np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Interval(low=float(low), high=float(high))
