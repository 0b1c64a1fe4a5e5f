"""Robust deviations, beside scipy's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation

from components.fault_tolerance.guards import compute_deviations

NUMBERS = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


@given(st.lists(NUMBERS, min_size=8, max_size=64), NUMBERS)
def test_they_are_those_of_the_normal_mad(window: list[float], value: float) -> None:
    spread = median_abs_deviation(window, scale="normal")
    found = compute_deviations(value, window)
    if spread > 1e-9:
        expected = (value - np.median(window)) / spread
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_third_of_spikes_in_the_window_hides_no_spike() -> None:
    """With mean and standard deviation the same spike is 1.4 deviations away."""
    window = [2.0 + 0.01 * (i % 7) for i in range(40)] + [9.0] * 20
    assert compute_deviations(9.0, window) > 100
    assert (9.0 - np.mean(window)) / np.std(window) < 2


@pytest.mark.parametrize(("value", "expected"), [(2.0, 0.0), (2.5, math.inf), (1.5, -math.inf)])
def test_where_most_figures_are_alike_whatever_differs_is_far_away(
    value: float, expected: float
) -> None:
    assert compute_deviations(value, [2.0] * 10 + [3.0] * 3) == expected
