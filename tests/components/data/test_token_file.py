"""Token files, and shards that are read like one file."""

import dataclasses
import hashlib
import pickle
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config.tokenizer_spec import id_width
from components.data.manifest import Manifest, SourceRecord, TokenizerRecord
from components.data.mixture import windows_per_source
from components.data.order import Phase, SampleOrder
from components.data.samples import HeldOutWindows, PackedSamples
from components.data.token_file import (
    OpenFiles,
    ShardedTokens,
    TokenFileRecord,
    little_endian,
    open_token_file,
    write_token_file,
)
from components.errors import RecipeError

DOCUMENTS = [[5, 300, 65_535], [7], []]


@pytest.mark.parametrize(("vocab_size", "letter"), [(65_536, "H"), (65_537, "I")])
def test_a_file_is_little_endian_ids_and_nothing_else(tmp_path, vocab_size, letter):
    path = tmp_path / "a.tokens"
    record = write_token_file(path, DOCUMENTS, eod_id=4, vocab_size=vocab_size)
    expected = struct.pack(f"<7{letter}", 5, 300, 65_535, 4, 7, 4, 4)
    assert path.read_bytes() == expected
    assert (record.name, record.tokens, record.documents) == ("a.tokens", 7, 3)
    assert record.bytes == len(expected)
    assert record.sha256 == hashlib.sha256(expected).hexdigest()
    assert id_width(vocab_size) == {"H": "uint16", "I": "uint32"}[letter]
    tokens = open_token_file(tmp_path, record)
    assert isinstance(tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1
    path.write_bytes(b"\0" * 12)
    message = f"is truncated: 12 bytes, the manifest says {len(expected)}"
    with pytest.raises(RecipeError, match=message):
        open_token_file(tmp_path, record)
    path.unlink()
    for token in (-1, vocab_size):
        with pytest.raises(AssertionError, match="token id"):
            write_token_file(path, [[5], [token]], eod_id=4, vocab_size=vocab_size)
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.lists(st.integers(0, 99_999)), min_size=1), st.booleans())
def test_written_tokens_are_read_back(tmp_path_factory, documents, wide):
    vocab_size = 100_000 if wide else 1000
    documents = [[token % vocab_size for token in document] for document in documents]
    folder = tmp_path_factory.mktemp("tokens")
    record = write_token_file(folder / "a", documents, eod_id=4, vocab_size=vocab_size)
    tokens = open_token_file(folder, record)
    expected = [token for document in documents for token in [*document, 4]]
    assert tokens.tolist() == expected
    assert record.dtype == tokens.dtype.name


def write(folder, name, tokens, width="uint16", first_token=0) -> TokenFileRecord:
    content = np.array([7] * first_token + list(tokens), little_endian(width)).tobytes()
    (folder / name).write_bytes(content)
    return TokenFileRecord(name, "", len(content), len(tokens), 1, width, first_token)


def sharded(folder, sizes, files: OpenFiles) -> ShardedTokens:
    """Write shards with consecutive tokens, and with various widths and offsets."""
    widths = ("uint16", "uint32", "int32")
    first, records = 0, []
    for number, size in enumerate(sizes):
        tokens = range(first, first + size)
        records.append(write(folder, f"{number}", tokens, widths[number % 3], number % 4))
        first += size
    return ShardedTokens(records=records, files=files)


@given(
    st.lists(st.integers(0, 9), max_size=12),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 40))),
)
def test_any_range_equals_the_range_of_the_joined_files(tmp_path_factory, sizes, stretches):
    folder = tmp_path_factory.mktemp("shards")
    tokens = sharded(folder, sizes, OpenFiles(folder=folder, most_open=3))
    joined = list(range(sum(sizes)))
    assert len(tokens) == len(joined)
    for start, length in stretches:
        end = start + length
        assert tokens.read_tokens(start, end).tolist() == joined[start:end]


def mapped(folder) -> int:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-1] for line in maps if str(folder) in line})


def test_no_more_files_are_open_than_allowed(tmp_path):
    files = OpenFiles(folder=tmp_path, most_open=3)
    tokens = sharded(tmp_path, [5] * 40, files)
    assert mapped(tmp_path) == 0
    for start in (0, 100, 7, 150, 60, 0):
        tokens.read_tokens(start, start + 50)
        assert mapped(tmp_path) == 3


def test_a_frequently_read_file_stays_open(tmp_path):
    files = OpenFiles(folder=tmp_path, most_open=2)
    records = [write(tmp_path, str(number), [number] * 3) for number in range(4)]
    first = files.tokens(records[0])
    for number in (1, 0, 2, 0, 3):
        again = files.tokens(records[number])
        assert number or again is first


def test_a_missing_shard_is_named_when_it_is_read(tmp_path):
    tokens = sharded(tmp_path, [5, 5, 5], OpenFiles(folder=tmp_path, most_open=3))
    (tmp_path / "2").unlink()
    assert tokens.read_tokens(0, 10).tolist() == list(range(10))
    with pytest.raises(RecipeError, match=r"2: is missing, but the manifest lists it"):
        tokens.read_tokens(8, 11)


def split_into_shards(prepared, size: int):
    folder, manifest = prepared

    def cut(records):
        tokens = ShardedTokens(records=records, files=OpenFiles(folder=folder, most_open=1))
        return tuple(
            write(folder, f"{records[0].name}-{start}", tokens.read_tokens(start, start + size))
            for start in range(0, len(tokens), size)
        )

    sources = {
        name: dataclasses.replace(one, train=cut(one.train), held_out=cut(one.held_out))
        for name, one in manifest.sources.items()
    }
    return dataclasses.replace(manifest, sources=sources)


@pytest.mark.parametrize("size", [3, 8, 50])
def test_cutting_files_into_shards_changes_no_window(prepared, size):
    folder, whole = prepared
    cut = split_into_shards(prepared, size)
    phase = Phase(first_sample=0, shares={"a": 0.6, "b": 0.4}, path="data.shares")
    windows = windows_per_source(whole, 8)
    assert windows_per_source(cut, 8) == windows
    order = SampleOrder(phases=[phase], samples=windows, seed=1)
    one, two = (
        PackedSamples(folder=folder, manifest=manifest, order=order, sequence_length=8)
        for manifest in (whole, cut)
    )
    assert all(one[p].tolist() == two[p].tolist() for p in range(60))
    held_out = [
        HeldOutWindows(folder=folder, manifest=manifest, sequence_length=4, max_windows=99)
        for manifest in (whole, cut)
    ]
    rows = [[row.tolist() for row in windows.iter_windows("a")] for windows in held_out]
    assert rows[0] == rows[1]


def test_a_batch_of_four_trillion_tokens_is_read_quickly(tmp_path):
    files, tokens = 3000, 1_333_333_333
    records = []
    for number in range(files):
        path = tmp_path / f"{number}.tokens"
        path.touch()
        with path.open("r+b") as file:
            file.truncate(2 * tokens)  # sparse: takes no room
        records.append(TokenFileRecord(path.name, "", 2 * tokens, tokens, 1, "uint16"))
    tokenizer = TokenizerRecord(settings={}, files=(), vocab_size=1000, eod_id=0)
    train, held_out = tuple(records), tuple(records[:1])
    sources = {"a": SourceRecord(inputs=(), documents=1, train=train, held_out=held_out)}
    manifest = Manifest("", tokenizer, held_out_fraction=0.1, sources=sources)
    manifest.save_manifest(tmp_path)
    began = time.process_time()  # the time of this process, as the host may be busy
    manifest = Manifest.from_folder(tmp_path)
    windows = windows_per_source(manifest, 4096)
    phase = Phase(first_sample=0, shares={"a": 1.0}, path="data.shares")
    order = SampleOrder(phases=[phase], samples=windows, seed=0)
    samples = PackedSamples(
        folder=tmp_path, manifest=manifest, order=order, sequence_length=4096
    )
    assert sum(samples[position].shape[0] for position in range(16)) == 16 * 4097
    assert time.process_time() - began < 0.5
    assert windows["a"] == (files * tokens - 1) // 4096
    assert len(pickle.dumps(samples)) < 1 << 20
