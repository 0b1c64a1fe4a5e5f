import hashlib
import random

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine

from components.data import token_file as module
from components.data.token_file import encode_to_file, iter_batches, open_token_file
from tests.components.data import test_byte_bpe as byte_bpe
from tests.data_prep.conftest import make_paragraphs, make_tokenizer


@pytest.fixture(scope="module")
def texts():
    draw = random.Random(1)
    paragraphs = make_paragraphs(400, "abcdeäß", seed=1)
    return ["\n".join(draw.choices(paragraphs, k=draw.randint(0, 8))) for _ in range(300)]


@pytest.fixture(scope="module")
def unigram(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("unigram")
    tokenizer = make_tokenizer()
    tokenizer.train_on_texts(texts, folder)
    return tokenizer, folder


def expected_file(ids_of_texts, eod_id):
    ids = [token for ids in ids_of_texts for token in [*ids, eod_id]]
    return hashlib.sha256(np.array(ids, "<u2").tobytes()).hexdigest()


def test_ids_equal_sentencepieces(tmp_path, unigram, texts):
    tokenizer, folder = unigram
    record = encode_to_file(tmp_path / "a", iter(texts), tokenizer)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    assert record.sha256 == expected_file(map(model.encode, texts), tokenizer.eod_id)
    assert record.documents == len(texts)
    assert len(open_token_file(tmp_path, record)) == record.tokens


def test_ids_equal_the_byte_level_engines(tmp_path, texts):
    tokenizer = byte_bpe.make("bpe_neox_dolma")
    tokenizer.train_on_texts(texts, tmp_path)
    engine = Engine.from_file(str(tmp_path / "tokenizer.json"))
    expected = (engine.encode(text, add_special_tokens=False).ids for text in texts)
    record = encode_to_file(tmp_path / "a", iter(texts), tokenizer)
    assert record.sha256 == expected_file(expected, tokenizer.eod_id)


def test_the_file_is_the_same_for_any_batches(tmp_path, unigram, texts, monkeypatch):
    tokenizer, _ = unigram
    records = set()
    for batch_characters in (1 << 20, 1, 5_000, 20_000):
        monkeypatch.setattr(module, "BATCH_CHARACTERS", batch_characters)
        records.add(encode_to_file(tmp_path / "a", iter(texts), tokenizer))
    assert len(records) == 1


def test_no_text_gives_an_empty_file(tmp_path, unigram):
    record = encode_to_file(tmp_path / "a", iter([]), unigram[0])
    assert (record.tokens, record.documents, record.bytes) == (0, 0, 0)


def test_a_text_that_cannot_be_read_leaves_no_file(tmp_path, unigram):
    def texts():
        yield "abc"
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        encode_to_file(tmp_path / "a", texts(), unigram[0])
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.text("a", max_size=6)), st.integers(1, 12))
def test_batches_keep_the_order_and_close_at_the_limit(items, size):
    found = list(iter_batches(iter(items), size))
    assert [item for batch in found for item in batch] == items
    sizes = [[len(item) + 1 for item in batch] for batch in found]
    assert all(sum(each) >= size for each in sizes[:-1])
    assert all(sum(each[:-1]) < size for each in sizes)
    assert all(sizes)
