import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.data import tokenizer as tokenizers
from components.data.tokenizer import cut_text
from tests.components.data import test_byte_bpe as byte_bpe
from tests.components.data import test_unigram as unigram

PART = 600
TOKENIZERS = [
    unigram.make,
    lambda: unigram.make(add_dummy_prefix=False),
    *(lambda family=family: byte_bpe.make(family) for family in byte_bpe.FAMILIES),
]


@given(st.text("ab1 \n.ä", max_size=300), st.integers(2, 40))
def test_parts_join_to_the_text_and_respect_the_limit(text, part_characters):
    parts = list(cut_text(text, part_characters))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= part_characters


def test_a_part_ends_before_a_space_between_words():
    parts = list(cut_text("some words and more of them" * 4, 20))
    assert all(part.startswith(" ") for part in parts[1:])
    assert all(part[-1].isalnum() for part in parts)


@pytest.mark.parametrize("make", TOKENIZERS)
def test_a_text_in_parts_has_the_ids_of_the_whole(make, tmp_path, monkeypatch):
    tokenizer = make()
    text = "\n\n".join(byte_bpe.words()) + Path(__file__).read_text("utf-8") + "  x ﬁn é 12 3"
    tokenizer.train_on_texts(byte_bpe.words(), tmp_path)
    assert len(text) < tokenizers.PART_CHARACTERS
    (whole,) = tokenizer.encode([text])
    monkeypatch.setattr(tokenizers, "PART_CHARACTERS", PART)
    later = list(cut_text(text, PART))[1:]
    assert len(later) > 20
    assert all(part.startswith(" ") for part in later)
    short, in_parts = tokenizer.encode(["abc abc", text])
    assert in_parts.tolist() == whole.tolist()
    assert short.tolist() == tokenizer.encode(["abc abc"])[0].tolist()


def test_a_long_text_without_spaces_is_encoded(tmp_path, monkeypatch):
    tokenizer = byte_bpe.make()
    tokenizer.train_on_texts(byte_bpe.words(), tmp_path)
    monkeypatch.setattr(tokenizers, "PART_CHARACTERS", PART)
    draw = random.Random(1)
    text = "".join(draw.choices("abcdefgäß", k=2_000))
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text
