"""The rule of repeated n-grams, against a version that tries every place."""

import random

import numpy as np
import pytest
from datatrove.data import Document
from hypothesis import given
from hypothesis import strategies as st

from components.config.schema.document_steps import RepeatedNgrams
from data_prep.filters.published import RepeatedNgramFilter, times_in_a_row, token_numbers
from data_prep.sources import library_docs


def plainly(tokens: list[int], size: int) -> int:
    """Try every start, and count how often the span there follows itself."""
    best = 1
    for start in range(len(tokens) - size + 1):
        times, span = 1, tokens[start : start + size]
        while tokens[start + times * size : start + (times + 1) * size] == span:
            times += 1
        best = max(best, times)
    return best


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 13))
def test_times_in_a_row_are_those_of_the_plain_count(tokens, size):
    assert times_in_a_row(np.array(tokens, np.int64), size) == plainly(tokens, size)


@given(
    st.lists(st.integers(0, 40), max_size=8),
    st.lists(st.integers(0, 1), min_size=1, max_size=6),
    st.integers(1, 9),
    st.lists(st.integers(0, 40), max_size=8),
)
def test_a_planted_repetition_is_found_at_any_place(before, span, times, after):
    tokens = [*before, *span * times, *after]
    found = times_in_a_row(np.array(tokens, np.int64), len(span))
    assert found == plainly(tokens, len(span)) >= times


def judge(text: str, repeats: int = 32, sizes: tuple[int, int] = (1, 13)) -> str | None:
    settings = RepeatedNgrams(min_tokens=sizes[0], max_tokens=sizes[1], repeats=repeats)
    return RepeatedNgramFilter(settings)(Document(text=text, id="0"))


@given(st.lists(st.sampled_from(["a", "b", ","]), max_size=50), st.integers(2, 5))
def test_a_document_is_removed_when_some_size_repeats_enough(tokens, repeats):
    text = " ".join(tokens)
    numbers = [("a", "b", ",").index(token) for token in tokens]
    broken = any(plainly(numbers, size) >= repeats for size in (2, 3, 4))
    assert (judge(text, repeats, (2, 4)) is not None) == broken


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0, " * 32, "repeated_ngrams: 2-gram 32 times > 31"),
        ("0, " * 31, None),
        ("g4OD" * 200, "repeated_ngrams: 1-gram 100 times > 31"),
        ("面包" * 40, "repeated_ngrams: 2-gram 40 times > 31"),
        ("1 2 3 4 5 6 7 8 9 10 11 12 13 " * 32, "repeated_ngrams: 13-gram 32 times > 31"),
        ("1 2 3 4 5 6 7 8 9 10 11 12 13 14 " * 32, None),
        ("-" * 500, None),  # a ruled line is one token
        ("", None),
        ("a", None),
    ],
)
def test_the_published_rule_on_planted_texts(text, reason):
    assert judge(text) == reason


@pytest.mark.long
def test_prose_stays_until_a_repetition_is_put_into_it():
    draw = random.Random(3)
    for document in library_docs()[:100]:
        assert judge(document.text) is None
        place = draw.randrange(len(document.text))
        planted = document.text[:place] + " 255, 255," * 20 + document.text[place:]
        assert judge(planted) is not None


def test_a_token_is_a_piece_of_a_word_or_a_run_of_marks():
    assert token_numbers("so so, internationally ... so").tolist() == [0, 0, 2, 3, 4, 5, 0]
    assert token_numbers("  ").tolist() == []
