"""A value that may be a word or a section gets one message, about what it looks like."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from components.config.schema.types import Count, OrNone, Section
from components.config.validation import read_section
from components.errors import RecipeError


class Inner(Section):
    size: Count
    label: str


class Outer(Section):
    part: OrNone[Inner]
    amount: Count | Literal["all"]
    words: Literal["none"] | Annotated[tuple[str, ...], Field(strict=False)]


GOOD = {"part": "none", "amount": 1, "words": "none"}


@pytest.mark.parametrize(
    ("wrong", "lines"),
    [
        (
            {"part": {"size": 0, "label": "x"}},
            ["outer.part.size: input should be greater than 0, got 0"],
        ),
        ({"part": "nothing"}, ["outer.part: input should be 'none', got 'nothing'"]),
        (
            {"part": {"size": 0, "label": 3}},
            [
                "outer.part.size: input should be greater than 0, got 0",
                "outer.part.label: input should be a valid string, got 3",
            ],
        ),
        ({"part": {"size": 1}}, ["outer.part.label: missing"]),
    ],
)
def test_only_the_member_that_was_meant_is_spoken_of(
    wrong: dict[str, object], lines: list[str]
) -> None:
    with pytest.raises(RecipeError) as raised:
        read_section(Outer, GOOD | wrong, "outer")
    *said, way = str(raised.value).splitlines()
    assert said == lines
    assert way.startswith("  ")


def test_a_number_or_a_word_keeps_both_messages() -> None:
    with pytest.raises(RecipeError, match=r"greater than 0, got -1\n.*should be 'all'.*\n  "):
        read_section(Outer, GOOD | {"amount": -1}, "outer")
