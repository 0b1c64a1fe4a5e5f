"""Numbers as the report writes them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.report import numbers

_POWERS = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
# Values, and what each is written as.
_CASES: dict[Callable[..., str], list[tuple[Any, str]]] = {
    numbers.format_exact: [
        (None, "—"), (True, "yes"), (False, "no"), (7_452_725_248, "7,452,725,248"),
        (2891.5, "2,891.5"), (3e-05, "3e-05"), ([1000, "a"], "1,000, a"),
        ({"de": 0.5, "en": 1}, "de 0.5, en 1"), ("TP 2", "TP 2"),
    ],
    numbers.format_count: [
        (0, "0"), (999, "999"), (999_700, "1.00 M"), (12_345.6, "12.3 k"), (None, "—"),
        (math.inf, "inf"),
    ],
    numbers.format_loss: [(math.nan, "nan")],
    numbers.format_measured: [
        (4096, "4,096"), (4096.4, "4,096"), (0.51234, "0.5123"), (3e20, "3e+20"),
        (math.nan, "nan"),
    ],
    numbers.format_duration: [
        (None, "—"), (4.25, "4.2 s"), (200.0, "3 min 20 s"), (59.97, "1 min 0 s"),
        (3599.4, "59 min 59 s"), (3599.9, "1 h 0 min"), (7260.0, "2 h 1 min"),
        (171_000.0, "47 h 30 min"), (172_790.0, "2 d 0 h"), (180_000.0, "2 d 2 h"),
    ],
    numbers.format_step_seconds: [
        (0.0000118, "0.0118 ms"), (0.25, "250 ms"), (0.9991, "999 ms"), (0.9996, "1 s"),
        (10.11, "10.1 s"), (1234.5, "1,230 s"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", _CASES)
def test_a_value_is_written_as_listed(form):
    values, texts = zip(*_CASES[form], strict=True)
    assert tuple(map(form, values)) == texts


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1_110_389.0, 3, "1,110,000"), (4.99692e10, 4, "49,970,000,000"), (999.96, 4, "1,000"),
        (46.51, 3, "46.5"), (0.40649, 3, "0.406"), (12, 4, "12"), (0.0, 4, "0"),
        (-23_456.0, 2, "-23,000"), (1.5e-7, 2, "1.5e-07"), (math.inf, 4, "inf"),
    ],
)  # fmt: skip
def test_an_estimate_has_its_digits_and_no_exponent(value, digits, text):
    assert numbers.format_significant(value, digits) == text


@given(st.integers(min_value=1, max_value=10**15))
def test_a_short_count_is_within_half_a_percent_and_three_digits(value):
    number, _, unit = numbers.format_count(value).partition(" ")
    assert float(number.replace(",", "")) * _POWERS[unit] == pytest.approx(value, rel=0.0051)
    assert value >= 10**15 or len(number.replace(".", "").replace(",", "")) <= 4


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_digit_of_a_stated_number_is_dropped(value):
    assert float(numbers.format_exact(value).replace(",", "")) == value


def test_rates_carry_an_si_prefix():
    assert numbers.format_rate(35.13e12, "FLOP/s") == "35.1 TFLOP/s"
    assert numbers.format_rate(12.0, "FLOP/s") == "12 FLOP/s"
    assert numbers.format_rate(None, "FLOP/s") == "—"
