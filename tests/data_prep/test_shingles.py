import hashlib
import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.shingles import _table, hash_shingles


def ngrams_of(words, ngram):
    """Return the n-grams instead of their hashes."""
    if not words:
        return []
    width = min(ngram, len(words))
    return [tuple(words[i : i + width]) for i in range(len(words) - width + 1)]


@given(st.lists(st.text("abä", min_size=1, max_size=3), max_size=40), st.integers(1, 6))
def test_hashes_are_equal_only_for_equal_ngrams(words, ngram):
    expected = ngrams_of([word.replace("ä", "a") for word in words], ngram)
    hashes = hash_shingles(" ".join(words), ngram).tolist()
    assert len(hashes) == len(expected)
    pairs = set(zip(expected, hashes, strict=True))
    assert len(pairs) == len(set(expected)) == len(set(hashes))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Der Äther: 12 Gramm!", "der ather 99 gramm"),
        ("ГОРОД\tL\u00e9on", "город leon"),
        ("a\u00a0b\u3000c\n\nd", "a b c d"),
        ("„quote“ \u2013 dash…", "quote dash"),
    ],
)
def test_case_marks_digits_and_punctuation_make_no_difference(text, same):
    assert hash_shingles(text, 2).tolist() == hash_shingles(same, 2).tolist()


def test_words_of_different_letters_have_different_hashes():
    words = ["a", "b", "ab", "ba", "aa", "город", "ß", "ss", "日", "本", "1", "11", "कि", "का"]
    hashes = [hash_shingles(word, 5).tolist() for word in words]
    assert all(len(each) == 1 for each in hashes)
    assert len({each[0] for each in hashes}) == len(words)


def test_a_han_character_and_a_kana_are_words_by_themselves():
    joined, spaced = (
        hash_shingles(text, 1) for text in ("日本語のtext語", "日 本 語 の text 語")
    )
    assert joined.tolist() == spaced.tolist()


def test_a_short_text_has_one_shingle_and_an_empty_text_none():
    assert len(hash_shingles("one two three", 5)) == 1
    assert hash_shingles("one two three", 5) != hash_shingles("one two", 5)
    assert [len(hash_shingles(text, 5)) for text in ("", " \n", "-- !")] == [0, 0, 0]


@pytest.mark.parametrize("space", [" ", "\n"])
def test_a_long_text_has_the_words_of_its_parts(space):
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(16_000)]
    expected = [int(hash_shingles(word, 1)[0]) for word in words]
    found = hash_shingles(space.join(words), 1)
    # Without spaces a piece ends anywhere and may split a word.
    same = len(set(expected) - set(found.tolist()))
    assert len(found) - len(expected) <= (0 if space == " " else 3)
    assert same <= (0 if space == " " else 3)
    if space == " ":
        assert found.tolist() == expected


def test_a_lone_surrogate_is_a_separator():
    assert hash_shingles("a\ud800b", 1).tolist() == hash_shingles("a b", 1).tolist()


def test_letters_equal_those_of_regular_expressions():
    word = re.compile(r"\w")
    ranges = [*range(0x20, 0x220), *range(0x3A3, 0x3CA), *range(0x410, 0x450)]
    for point in ranges:
        is_letter = bool(word.match(chr(point))) and chr(point) != "_"
        assert bool(_table()[point]) == is_letter, hex(point)


def test_the_codes_are_the_same_on_every_python():
    digest = hashlib.sha256(_table().astype("<u4").tobytes()).hexdigest()
    assert digest.startswith("57a0a71e1c28a92f")


def test_the_hashes_are_the_same_on_every_machine():
    hashes = hash_shingles("Ein Text, der überall gleich ist: 日本 2024", 3).astype("<u8")
    assert hashlib.sha256(hashes.tobytes()).hexdigest().startswith("47bc87d651bee44b")
    assert hashes.dtype == np.uint64
