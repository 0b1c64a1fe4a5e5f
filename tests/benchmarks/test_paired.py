"""The interval of a median of paired ratios, beside the binomial distribution."""

import math
import random

import pytest
from scipy.stats import binom

from benchmarks.ratios import CONFIDENCE, paired_ratio


def test_what_slows_both_of_a_pair_leaves_their_ratio_alone() -> None:
    draw = random.Random(0)
    others = [draw.uniform(1.0, 50.0) for _ in range(40)]
    found = paired_ratio([1.25 * seconds for seconds in others], others)
    assert all(value == pytest.approx(1.25) for value in found.values())


@pytest.mark.parametrize("count", [6, 7, 30, 101])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int) -> None:
    ratios = [float(place) for place in range(1, count + 1)]
    found = paired_ratio(ratios, [1.0] * count)
    assert found["median"] == (count + 1) / 2
    low, high = int(found["low"]), int(found["high"])
    # The true median lies between these two where from `low` to `high` - 1 fall below it.
    coverage = binom.cdf(high - 1, count, 0.5) - binom.cdf(low - 1, count, 0.5)
    assert coverage >= CONFIDENCE
    assert high - low < count or count < 9  # it says something


def test_below_six_pairs_no_interval_is_known() -> None:
    found = paired_ratio([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert found["median"] == 2.0
    assert math.isnan(found["low"])
