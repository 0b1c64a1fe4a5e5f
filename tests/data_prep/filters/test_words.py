"""Words and sentences without a download."""

import re

import pytest
from datatrove.utils.text import TERMINAL_PUNCTUATION
from datatrove.utils.word_tokenizers import WhitespaceTokenizer
from hypothesis import given
from hypothesis import strategies as st

from data_prep.filters.published import LAST_OF_PLANE, Words, character_class, word_pattern

TEXTS = st.text(st.sampled_from(list("aB. !?\n\"'”。") + sorted(TERMINAL_PUNCTUATION)[:3]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, world.", ["Hello", ",", "world", "."]),
        ("don't l\u2019eau 'quoted'", ["don't", "l\u2019eau", "'", "quoted", "'"]),
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा", "।"]),
        ("面包师 bakes パン", ["面", "包", "师", "bakes", "パ", "ン"]),
        ("ขนม 3.5€ 🙂", ["ข", "น", "ม", "3", ".", "5", "€", "🙂"]),
    ],
)
def test_words_and_marks_are_cut_in_every_script(text, expected):
    assert Words().word_tokenize(text) == expected


@given(st.text())
def test_nothing_but_white_space_is_lost(text):
    kept = "".join(word_pattern().findall(text))
    assert kept == "".join(char for char in text if not char.isspace())


@given(TEXTS)
def test_sentences_are_those_of_the_inherited_pattern(text):
    assert Words().sent_tokenize(text) == WhitespaceTokenizer().sent_tokenize(text)


def test_a_class_holds_exactly_what_belongs_to_it():
    upper = re.compile(f"[{character_class(str.isupper)}]")
    plane = [chr(point) for point in range(LAST_OF_PLANE + 1)]
    assert [c for c in plane if upper.fullmatch(c)] == [c for c in plane if c.isupper()]
    assert upper.fullmatch("🙂")  # pictographs are always in
