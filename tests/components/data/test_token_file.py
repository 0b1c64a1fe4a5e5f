import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config.tokenizer_spec import id_width
from components.data.token_file import open_token_file, write_token_file
from components.errors import RecipeError

DOCUMENTS = [[5, 300, 65_535], [7], []]


@pytest.mark.parametrize(("vocab_size", "letter"), [(65_536, "H"), (65_537, "I")])
def test_the_file_is_little_endian_ids_and_nothing_else(tmp_path, vocab_size, letter):
    path = tmp_path / "a.tokens"
    record = write_token_file(path, DOCUMENTS, eod_id=4, vocab_size=vocab_size)
    expected = struct.pack(f"<7{letter}", 5, 300, 65_535, 4, 7, 4, 4)
    assert path.read_bytes() == expected
    assert (record.name, record.tokens, record.documents) == ("a.tokens", 7, 3)
    assert record.bytes == len(expected)
    assert record.sha256 == hashlib.sha256(expected).hexdigest()


@pytest.mark.parametrize(
    ("vocab_size", "width"), [(2, "uint16"), (65_536, "uint16"), (65_537, "uint32")]
)
def test_the_width_follows_the_largest_id(vocab_size, width):
    assert id_width(vocab_size) == width


@given(st.lists(st.lists(st.integers(0, 99_999)), min_size=1), st.booleans())
def test_what_was_written_is_read(tmp_path_factory, documents, wide):
    vocab_size = 100_000 if wide else 1000
    documents = [[token % vocab_size for token in document] for document in documents]
    folder = tmp_path_factory.mktemp("tokens")
    record = write_token_file(folder / "a", documents, eod_id=4, vocab_size=vocab_size)
    tokens = open_token_file(folder, record)
    expected = [token for document in documents for token in [*document, 4]]
    assert tokens.tolist() == expected
    assert record.dtype == tokens.dtype.name


def test_the_mapped_tokens_cannot_be_written_to(tmp_path):
    record = write_token_file(tmp_path / "a", DOCUMENTS, eod_id=4, vocab_size=65_536)
    tokens = open_token_file(tmp_path, record)
    assert isinstance(tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


@pytest.mark.parametrize("token", [-1, 10])
def test_an_id_outside_the_vocabulary_is_a_bug_and_leaves_no_file(tmp_path, token):
    with pytest.raises(AssertionError, match="token id"):
        write_token_file(tmp_path / "a", [[5], [token]], eod_id=4, vocab_size=10)
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_file_is_not_opened(tmp_path):
    record = write_token_file(tmp_path / "a", DOCUMENTS, eod_id=4, vocab_size=65_536)
    (tmp_path / "a").write_bytes(b"\0" * 12)
    with pytest.raises(RecipeError, match="is truncated: 12 bytes, the manifest says 14"):
        open_token_file(tmp_path, record)
