"""OSCAR's warnings as in Ungoliant, repeated n-grams, and words without a download."""

import random
import re

import numpy as np
import pytest
from datatrove.data import Document
from datatrove.utils.text import TERMINAL_PUNCTUATION
from datatrove.utils.word_tokenizers import WhitespaceTokenizer
from hypothesis import given
from hypothesis import strategies as st

from components.config.schema.document_steps import RepeatedNgrams
from data_prep.filters.published import (
    LAST_OF_PLANE,
    AnnotationFilter,
    LineShapeFilter,
    RepeatedNgramFilter,
    Words,
    character_class,
    times_in_a_row,
    token_numbers,
    word_pattern,
)
from data_prep.sources import library_docs

LINE = "The miller waited for the flood to pass and counted the sacks. ".ljust(101, "a")
SHORT = LINE[:100]


@pytest.fixture
def by_annotation(preset):
    return AnnotationFilter(preset("opengptx").filters.annotations)


@pytest.fixture
def by_shape(preset):
    return LineShapeFilter(preset("opengptx").filters.line_shape)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, None),
        ({"quality_warnings": None, "harmful_pp": None, "categories": None}, None),
        ({"quality_warnings": ["tiny", "noisy"]}, "annotations: tiny noisy"),
        ({"harmful_pp": 24.9}, "annotations: perplexity 24.9, not 25 to 100000"),
        ({"harmful_pp": 25.0}, None),
        ({"harmful_pp": 1e5}, None),
        ({"harmful_pp": 1e5 + 1}, "annotations: perplexity 100001, not 25 to 100000"),
        ({"categories": ["press", "sect", "adult"]}, "annotations: adult sect"),
        ({"categories": ["press"]}, None),
    ],
)
def test_annotated_documents_are_removed_as_by_opengptx(metadata, reason, by_annotation):
    document = Document(text="any", id="0", metadata=metadata)
    assert by_annotation(document) == reason


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([LINE] * 4, "line_shape: tiny, 4 < 5 lines"),
        ([LINE] * 5, None),
        ([*[LINE] * 4, "", LINE], None),
        ([*[LINE] * 4, ""], "line_shape: tiny, 4 < 5 lines"),
        ([SHORT, LINE] * 5, None),
        ([*[SHORT, LINE] * 5, SHORT], "line_shape: short_sentences, 6 of 11 lines"),
        ([*["Home"] * 2, *[LINE] * 8], "line_shape: header, 2 of 2 lines short"),
        ([*[LINE] * 8, *["Imprint"] * 2], "line_shape: footer, 2 of 2 lines short"),
        (["Home", *[LINE] * 9], None),
        ([*[LINE] * 4, "1" * 500], "line_shape: noisy, 0.61 > 0.5 no letters"),
    ],
)
def test_a_bare_text_gets_ungoliants_warnings(lines, reason, by_shape):
    assert by_shape(Document(text="\n".join(lines), id="0")) == reason


def test_a_line_of_an_edge_is_measured_in_bytes(by_shape):
    greek = "μ" * 50  # 50 characters, 100 bytes
    texts = ["\n".join([*[edge] * 2, *[LINE] * 8]) for edge in (greek, greek[:-1])]
    found = [by_shape(Document(text=text, id="0")) for text in texts]
    assert found == [None, "line_shape: header, 2 of 2 lines short"]


def test_marks_on_letters_do_not_count_as_noise(by_shape):
    hindi = "\n".join(["हिन्दी में लिखी हुई एक लम्बी पंक्ति " * 4] * 5)
    assert by_shape(Document(text=hindi, id="0")) is None


def plainly(tokens: list[int], size: int) -> int:
    """Count the repetitions of the span at every start."""
    best = 1
    for start in range(len(tokens) - size + 1):
        times, span = 1, tokens[start : start + size]
        while tokens[start + times * size : start + (times + 1) * size] == span:
            times += 1
        best = max(best, times)
    return best


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 13))
def test_repetitions_in_a_row_equal_a_plain_count(tokens, size):
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
def test_prose_is_kept_until_a_repetition_is_planted():
    draw = random.Random(3)
    for document in library_docs()[:100]:
        assert judge(document.text) is None
        place = draw.randrange(len(document.text))
        planted = document.text[:place] + " 255, 255," * 20 + document.text[place:]
        assert judge(planted) is not None


def test_a_token_is_a_piece_of_a_word_or_a_run_of_marks():
    assert token_numbers("so so, internationally ... so").tolist() == [0, 0, 2, 3, 4, 5, 0]
    assert token_numbers("  ").tolist() == []


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
def test_only_white_space_is_lost(text):
    kept = "".join(word_pattern().findall(text))
    assert kept == "".join(char for char in text if not char.isspace())


@given(TEXTS)
def test_sentences_equal_the_inherited_pattern(text):
    assert Words().sent_tokenize(text) == WhitespaceTokenizer().sent_tokenize(text)


def test_a_character_class_has_exactly_its_characters():
    upper = re.compile(f"[{character_class(str.isupper)}]")
    plane = [chr(point) for point in range(LAST_OF_PLANE + 1)]
    assert [c for c in plane if upper.fullmatch(c)] == [c for c in plane if c.isupper()]
    assert upper.fullmatch("🙂")  # a class always has pictographs
