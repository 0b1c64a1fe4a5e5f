"""Layouts on the command line: one is found, others are files."""

import pytest

from command.arguments import read_point
from components.errors import RecipeError


def test_a_layout_that_is_searched_for_is_no_file() -> None:
    arguments = read_point(["recipe=teuken7b", "parallelism=auto", "within_days=30"])
    assert arguments.searches
    assert arguments.within_days == 30.0
    assert arguments.choices == {}
    assert not read_point(["recipe=teuken7b"]).searches


def test_another_layout_is_unknown() -> None:
    with pytest.raises(RecipeError, match=r"^parallelism: unknown parallelism: 'fast'"):
        read_point(["recipe=teuken7b", "parallelism=fast"])
