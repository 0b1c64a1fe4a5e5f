"""The interval of a median of paired ratios, compared with the binomial distribution."""

import math
import random

import pytest
from scipy.stats import binom

from benchmarks.ratios import CONFIDENCE, paired_ratio


def test_slowing_both_values_of_a_pair_does_not_change_their_ratio() -> None:
    generator = random.Random(0)
    others = [generator.uniform(1.0, 50.0) for _ in range(40)]
    ratio = paired_ratio([1.25 * seconds for seconds in others], others)
    assert all(value == pytest.approx(1.25) for value in ratio.values())


@pytest.mark.parametrize("count", [6, 7, 30, 101])
def test_the_interval_has_its_nominal_coverage(count: int) -> None:
    ratios = [float(value) for value in range(1, count + 1)]
    ratio = paired_ratio(ratios, [1.0] * count)
    assert ratio["median"] == (count + 1) / 2
    low, high = int(ratio["low"]), int(ratio["high"])
    # The interval contains the true median if `low` to `high` - 1 of the values are below it.
    coverage = binom.cdf(high - 1, count, 0.5) - binom.cdf(low - 1, count, 0.5)
    assert coverage >= CONFIDENCE
    assert high - low < count or count < 9  # not the whole range


def test_below_six_pairs_there_is_no_interval() -> None:
    ratio = paired_ratio([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert ratio["median"] == 2.0
    assert math.isnan(ratio["low"])
