"""The golden files were written by megatron-core 0.16.1 (`benchmarks.preparation`)."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from components.data.megatron import MegatronIndex, read_index, write_index
from components.data.token_file import write_token_file
from components.errors import RecipeError

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "megatron"
WHERE = "data.sources.a.tokens"
EOD = 1
VOCAB_SIZES = {"uint16": 1000, "int32": 70_000}


def documents_of(index: MegatronIndex) -> list[list[int]]:
    tokens = np.fromfile(index.bin_file, index.width)
    ends = index.document_ends(0, index.num_documents)
    return [part.tolist() for part in np.split(tokens, ends)[:-1]]


def golden(name: str) -> list[list[int]]:
    documents = json.loads((GOLDEN / f"{name}.json").read_text())
    return [[token for part in document for token in part] for document in documents]


@pytest.mark.parametrize("name", ["uint16", "int32", "uint16_whole", "int32_whole"])
def test_files_of_megatron_are_read_token_by_token(name):
    index = read_index(str(GOLDEN / name), WHERE)
    assert index.width == name.removesuffix("_whole")
    assert documents_of(index) == golden(name)
    assert index.tokens == sum(map(len, golden(name)))
    assert (not golden(name)[0]) == ("whole" not in name)  # an empty document is among them


@pytest.mark.parametrize("width", ["uint16", "int32"])
def test_written_files_equal_megatrons_byte_by_byte(tmp_path, width):
    documents = [document[:-1] for document in golden(f"{width}_whole")]
    path = tmp_path / f"{width}_whole.bin"
    record = write_token_file(path, documents, eod_id=EOD, vocab_size=VOCAB_SIZES[width])
    tokens = np.fromfile(path, record.dtype)
    write_index(path.with_suffix(""), tokens, record.dtype, eod_id=EOD)
    for suffix in (".bin", ".idx"):
        written = path.with_suffix(suffix).read_bytes()
        assert written == (GOLDEN / f"{width}_whole{suffix}").read_bytes()


def test_document_ends_are_equal_in_blocks_and_without_documents(monkeypatch, tmp_path):
    index = read_index(str(GOLDEN / "uint16"), WHERE)
    ends = index.document_ends(0, index.num_documents).tolist()
    assert index.document_ends(2, 5).tolist() == ends[2:5]
    monkeypatch.setattr("components.data.megatron.BLOCK", 3)  # every check in several blocks
    assert documents_of(read_index(str(GOLDEN / "uint16"), WHERE)) == golden("uint16")
    (tmp_path / "a.bin").touch()
    write_index(tmp_path / "a", np.empty(0, np.uint16), "uint16", eod_id=EOD)
    index = read_index(str(tmp_path / "a"), WHERE)
    assert (index.num_documents, index.tokens) == (0, 0)


def packed(offset: int, form: str, value: int):
    def damage(content: bytes) -> bytes:
        new = struct.pack(form, value)
        return content[:offset] + new + content[offset + len(new) :]

    return damage


SEQUENCES = 14  # of the golden file
LENGTHS, FIRST_BYTES = 34, 34 + 4 * SEQUENCES
BORDERS = FIRST_BYTES + 8 * SEQUENCES


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: b"", "is shorter than its header"),
        (lambda content: content[:33], "is shorter than its header"),
        (lambda content: content[:-1], r"is truncated: 273 bytes, its header states 274"),
        (lambda content: content + b"\0" * 14, r"is too long: 288 bytes"),
        (lambda content: b"GNU" + content[3:], r"starts with b'GNUDIDX"),
        (packed(9, "<Q", 2), "has version 2, expected 1"),
        (packed(17, "<B", 5), r"has ids of type 5, expected one of 4 \(int32\), 8 \(uint16\)"),
        (packed(18, "<Q", 1 << 62), "is truncated"),
        (packed(LENGTHS + 4, "<i", -2), "is damaged: sequence 1 does not start at"),
        (packed(LENGTHS + 4, "<i", 3), "is damaged: sequence 2 does not start at"),
        (packed(FIRST_BYTES, "<q", 2), "is damaged: sequence 0 does not start at"),
        (packed(BORDERS, "<q", 1), "is damaged: its documents do not contain the 14 sequences"),
        (packed(BORDERS + 16, "<q", 0), "is damaged: its documents do not contain"),
    ],
)
@pytest.mark.parametrize("block", [1 << 20, 2])
def test_a_damaged_index_is_refused(tmp_path, monkeypatch, damage, message, block):
    monkeypatch.setattr("components.data.megatron.BLOCK", block)
    shutil.copy(GOLDEN / "uint16.bin", tmp_path / "a.bin")
    (tmp_path / "a.idx").write_bytes(damage((GOLDEN / "uint16.idx").read_bytes()))
    with pytest.raises(RecipeError, match=rf"^data\.sources\.a\.tokens: .*a\.idx {message}"):
        read_index(str(tmp_path / "a"), WHERE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\1", r"a\.bin is truncated: 1 bytes, its index states 104"),
        (b"\1" * 106, "is too long"),
    ],
)
def test_tokens_of_another_size_than_the_index_are_refused(tmp_path, content, message):
    shutil.copy(GOLDEN / "uint16.idx", tmp_path / "a.idx")
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(RecipeError, match=message):
        read_index(str(tmp_path / "a"), WHERE)


def test_an_index_without_tokens_and_tokens_without_index_are_refused(tmp_path):
    shutil.copy(GOLDEN / "uint16.idx", tmp_path / "a.idx")
    shutil.copy(GOLDEN / "uint16.bin", tmp_path / "b.bin")
    with pytest.raises(RecipeError, match=r"a\.bin is missing\n  set a prefix"):
        read_index(str(tmp_path / "a"), WHERE)
    with pytest.raises(RecipeError, match=r"b\.idx cannot be read: No such file"):
        read_index(str(tmp_path / "b"), WHERE)
