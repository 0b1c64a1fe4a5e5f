"""Estimated figures are written with few digits and without exponents."""

import pytest

from components.report.numbers import format_significant


@pytest.mark.parametrize(
    ("value", "digits", "written"),
    [
        (1_110_389.0, 3, "1,110,000"),
        (4.99692e10, 4, "49,970,000,000"),
        (999.96, 4, "1,000"),
        (46.51, 3, "46.5"),
        (0.40649, 3, "0.406"),
        (12, 4, "12"),
        (0.0, 4, "0"),
        (-23_456.0, 2, "-23,000"),
        (1.5e-7, 2, "1.5e-07"),
        (float("inf"), 4, "inf"),
    ],
)
def test_a_figure_has_its_digits_and_no_exponent(
    value: float, digits: int, written: str
) -> None:
    assert format_significant(value, digits) == written
