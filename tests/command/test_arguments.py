"""Layouts on the command line: one is found, others are files."""

from command.arguments import read_point


def test_a_layout_that_is_searched_for_is_no_file() -> None:
    arguments = read_point(["recipe=teuken7b", "parallelism=auto", "within_days=30"])
    assert arguments.searches
    assert arguments.within_days == 30.0
    assert arguments.choices == {}
    assert not read_point(["recipe=teuken7b"]).searches
