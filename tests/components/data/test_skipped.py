"""Windows of the order that a run leaps over, beside a list of all numbers."""

from hypothesis import given
from hypothesis import strategies as st

from components.train.batches import SampleSkipper

WINDOWS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6)


def trained_on(windows: list[tuple[int, int]]) -> list[int]:
    out = {number for first, count in windows for number in range(first, first + count)}
    return [number for number in range(300) if number not in out]


@given(WINDOWS)
def test_places_are_the_numbers_that_no_window_has(windows: list[tuple[int, int]]) -> None:
    skipped, expected = SampleSkipper(windows), trained_on(windows)
    assert [skipped.find_sample_number(place) for place in range(100)] == expected[:100]


@given(WINDOWS, st.integers(0, 50), st.integers(1, 30))
def test_leaving_places_out_leaves_the_rest_in_order(windows, first, count):
    window = SampleSkipper(windows).find_window(first, first + count)
    rest = SampleSkipper([*windows, window])
    before = trained_on(windows)
    expected = before[:first] + before[first + count :]
    assert [rest.find_sample_number(place) for place in range(100)] == expected[:100]


@given(WINDOWS, st.integers(0, 100))
def test_what_was_left_out_below_a_number_is_counted(windows, number):
    left_out = sum(count for _, count in SampleSkipper(windows).iterate_skipped(number))
    assert number - left_out == sum(one < number for one in trained_on(windows))
