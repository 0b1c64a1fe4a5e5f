import gzip
import json
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from components.config.schema.data import HubDataset, Source
from components.errors import RecipeError
from data_prep.read import KINDS, kind_of, read_documents
from data_prep.sources import OpenSource, open_files, open_source

WHERE = "data.sources.mine.files"
TEXTS = [f"Zeile {number}: žluť\nund weiter" for number in range(500)]
JSONL = "\n".join(json.dumps({"text": text, "body": text[::-1]}) for text in TEXTS).encode()


def packed_gz(content: bytes) -> bytes:
    """Write two members, as parallel compressors do."""
    half = len(content) // 2
    return gzip.compress(content[:half]) + gzip.compress(content[half:])


def packed_zst(content: bytes) -> bytes:
    """Write two frames with checksums, as the command line does."""
    half = len(content) // 2
    pack = zstandard.ZstdCompressor(write_checksum=True).compress
    return pack(content[:half]) + pack(content[half:])


PACKERS = {".gz": packed_gz, ".zst": packed_zst}


def texts(path: Path, column: str = "text") -> list[str]:
    files = list(open_files((str(path),), WHERE, column))
    return [document.text for document in read_documents(files)]


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_lines_equal_plain_lines(tmp_path, suffix):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(PACKERS[suffix](JSONL))
    assert texts(path) == TEXTS
    assert texts(path, "body") == [text[::-1] for text in TEXTS]


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_paragraphs_equal_plain_paragraphs(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACKERS[suffix]("\ufeffEins\n\nzwei\ndrei".encode()))
    assert texts(path) == ["Eins", "zwei\ndrei"]


DAMAGES = {
    "cut short": lambda content: content[:-20],
    "cut between": lambda content: content[: len(content) // 3],
    "one byte changed": lambda content: content[:900] + b"\x00" + content[901:],
    "trailing bytes": lambda content: content + b"more",
    "not compressed": lambda _: JSONL,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("suffix", PACKERS)
def test_a_damaged_stream_is_named_with_its_place(tmp_path, suffix, damage):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(damage(PACKERS[suffix](JSONL)))
    with pytest.raises(RecipeError, match=rf"mine\.files: .*a\.jsonl\{suffix} is damaged af"):
        texts(path)


@pytest.mark.parametrize("padding", [b"\0", b"\0" * 511, b"\0" * 3_000_000])
def test_zeros_behind_a_gzip_stream_are_padding(tmp_path, padding):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed_gz(JSONL) + padding)
    assert texts(path) == TEXTS
    path.write_bytes(packed_gz(JSONL + b"\n") + padding + packed_gz(JSONL))
    assert texts(path) == TEXTS * 2
    path.write_bytes(packed_gz(JSONL) + padding + b"more")
    with pytest.raises(RecipeError, match=r"a\.jsonl\.gz is damaged after byte"):
        texts(path)


@pytest.mark.parametrize("suffix", PACKERS)
def test_an_empty_compressed_file_has_no_text(tmp_path, suffix):
    (tmp_path / f"a.txt{suffix}").touch()
    with pytest.raises(RecipeError, match="has no text"):
        texts(tmp_path / f"a.txt{suffix}")


def test_invalid_utf8_is_placed_in_the_decompressed_text(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"gut\nschl\xe4cht"))
    with pytest.raises(RecipeError, match=r"a\.txt\.gz is not UTF-8 at byte 8\n"):
        texts(path)


@pytest.mark.long
def test_a_line_of_200_megabytes_is_one_document(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(b'{"text": "%b"}' % (b"x" * 200_000_000)))
    assert [len(text) for text in texts(path)] == [200_000_000]


def test_a_line_beyond_the_limit_is_refused_with_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.read.MOST_LINE_BYTES", 50)
    path = tmp_path / "a.txt"
    path.write_text("short\n\n" + "x" * 48 + "\n\n" + "y" * 51)
    with pytest.raises(RecipeError, match=r"a\.txt has a line of more than 50 .* at byte 57"):
        texts(path)


def test_a_paragraph_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.read.MOST_LINE_BYTES", 50)
    path = tmp_path / "a.txt"
    path.write_text("ten bytes\n" * 5 + "\n" + "ten bytes\n" * 5)
    assert len(texts(path)) == 2
    path.write_text("ten bytes\n" * 6)
    with pytest.raises(RecipeError, match=r"a\.txt has a document of more than 50 char"):
        texts(path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_suffix_determines_the_format(kind):
    assert kind_of(f"part.0.{kind}") == kind
    assert kind_of(f"part{kind}.bak") is None


def parquet(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


def arrow(path: Path, *, as_file: bool = False, **columns) -> Path:
    table = pa.table(columns)
    write = pa.ipc.new_file if as_file else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, write(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return path


def arrow_file(path: Path, **columns) -> Path:
    return arrow(path, as_file=True, **columns)


DICTIONARY = pa.dictionary(pa.int16(), pa.string())
LARGE = pa.dictionary(pa.int32(), pa.large_string())
STRINGS = [pa.string(), pa.large_string(), pa.string_view(), DICTIONARY, LARGE]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
@pytest.mark.parametrize("write", [parquet, arrow, arrow_file])
def test_a_column_of_strings_is_read_row_by_row(tmp_path, kind, write):
    suffix = ".parquet" if write is parquet else ".arrow"
    path = write(tmp_path / f"a{suffix}", text=pa.array([*TEXTS, " "], pa.string()).cast(kind))
    assert texts(path) == TEXTS
    path = write(tmp_path / f"b{suffix}", id=range(500), body=pa.array(TEXTS).cast(kind))
    assert texts(path, "body") == TEXTS
    (file,) = open_files((str(path),), WHERE, "body")
    assert file.text_columns() == ["body"]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_a_row_without_a_text_is_refused_in_every_kind_of_column(tmp_path, kind):
    path = parquet(tmp_path / "a.parquet", text=pa.array(["x", None]).cast(kind))
    with pytest.raises(RecipeError, match=r"a\.parquet row 2 has no text"):
        texts(path)


END = b"\xff\xff\xff\xff\0\0\0\0"


@pytest.mark.parametrize(
    "content", [b"ARROW1\0\0ARROW1", b"\xff" * 7 + b"\x7f" + END, b"\xff" * 8 + END, b"A"]
)
def test_an_arrow_file_that_requires_too_much_memory_is_refused(tmp_path, content):
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(RecipeError, match=r"a\.arrow is damaged after row 0: ."):
        texts(tmp_path / "a.arrow")


@pytest.mark.parametrize("write", [arrow, arrow_file])
@pytest.mark.parametrize("keep", [0.999, 0.5, 0.1, 0.0])
def test_an_arrow_file_that_is_cut_short_is_refused(tmp_path, write, keep):
    path = write(tmp_path / "a.arrow", text=TEXTS)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(RecipeError, match=r"a\.arrow is damaged after row 0: .*\n  copy"):
        texts(path)


def test_arrow_files_with_changed_bytes_are_read_or_refused(tmp_path):
    content = arrow(tmp_path / "a.arrow", text=TEXTS[:20], id=range(20)).read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for place in random.integers(0, len(content), 300):
        changed = bytearray(content)
        changed[place] = random.integers(256)
        (tmp_path / "a.arrow").write_bytes(changed)
        try:
            texts(tmp_path / "a.arrow")
        except RecipeError:
            refused += 1
    assert refused > 30


@pytest.fixture
def saved(tmp_path):
    rows = datasets.Dataset.from_dict({"text": TEXTS, "id": range(500)})
    datasets.disable_progress_bars()
    rows.save_to_disk(tmp_path / "rows", num_shards=3)
    parts = {"train": rows, "test": rows.select(range(5))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "splits")
    return tmp_path


def test_datasets_saved_to_disk_are_read(saved):
    assert texts(saved / "rows") == texts(saved / "splits") == TEXTS
    assert texts(saved / "splits" / "test") == TEXTS[:5]
    (saved / "rows" / "cache-123.arrow").write_bytes(b"of Dataset.map")
    assert texts(saved / "rows") == TEXTS


@pytest.mark.parametrize("name", ["../other.arrow", "/etc/passwd", None, 7, "data-9.arrow"])
def test_files_of_a_saved_dataset_must_be_in_its_folder(saved, name):
    arrow(saved / "other.arrow", text=TEXTS)
    state = {"_data_files": [{"filename": name}]}
    (saved / "rows" / "state.json").write_text(json.dumps(state))
    with pytest.raises(RecipeError, match=r"mine\.files: .*rows lacks the file .*state\.json"):
        texts(saved / "rows")


def test_a_shard_that_is_missing_or_a_link_is_refused(saved):
    shard = saved / "rows" / "data-00001-of-00003.arrow"
    shard.rename(saved / "elsewhere")
    for change in (lambda: None, lambda: shard.symlink_to(saved / "elsewhere")):
        change()
        with pytest.raises(RecipeError, match=r"lacks the file 'data-00001"):
            texts(saved / "rows")


def test_without_a_training_split_the_splits_are_listed(saved):
    (saved / "splits" / "train").rename(saved / "splits" / "validation")
    with pytest.raises(RecipeError, match=r"no split 'train', but test, validation\n"):
        texts(saved / "splits")


@pytest.mark.parametrize("folder", ["rows", "splits"])
def test_a_saved_dataset_given_as_a_dataset_is_refused_with_its_key(saved, folder):
    source = Source(dataset=HubDataset(path=str(saved / folder), split="train"))
    with pytest.raises(RecipeError, match=rf"save_to_disk\n.*mine\.files=\[.*{folder}\]"):
        open_source("mine", source)


def test_the_fields_of_records_that_hold_text_are_listed(tmp_path):
    lines = ['{"id": 1, "url": "u", "body": "b"}', "", '{"body": null, "title": "t"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "a.txt").write_text("text")
    for name, expected in (("a.jsonl", ["url", "body", "title"]), ("a.txt", [])):
        (file,) = open_files((str(tmp_path / name),), WHERE, "text")
        assert file.text_columns() == expected


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": [1], "body": ["x"]}, r"mine\.column: .*parquet has no column 'text'\n.*id, b"),
        ({"text": [1, 2]}, r"mine\.column: .*'text' of .*a\.parquet has type int64, not"),
        ({"text": [b"x"]}, r"mine\.column: .*'text' .* has type binary, not"),
        ({"text": [["a"]]}, r"mine\.column: .*'text' .* has type list<"),
        ({"text": [{"a": "b"}]}, r"mine\.column: .*'text' .* has type struct<"),
        ({"text": ["x", None]}, r"mine\.files: .*a\.parquet row 2 has no text"),
        ({"text": [" ", ""]}, r"mine\.files: .*a\.parquet has no text"),
        ({"text": pa.array([], pa.string())}, r"mine\.files: .*a\.parquet has no text"),
    ],
)
def test_a_table_of_another_shape_is_refused(tmp_path, columns, message):
    with pytest.raises(RecipeError, match=message):
        texts(parquet(tmp_path / "a.parquet", **columns))


@pytest.mark.parametrize(
    "damage",
    [lambda c: c[:-30], lambda c: c[: len(c) // 2], lambda _: JSONL, lambda _: b""],
    ids=["cut short", "half", "no Parquet", "empty"],
)
def test_a_damaged_parquet_file_is_named(tmp_path, damage):
    path = parquet(tmp_path / "a.parquet", text=TEXTS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecipeError, match=r"a\.parquet is damaged after row 0: .*\n  copy"):
        texts(path)


def test_damage_in_a_later_row_group_is_placed(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": TEXTS})
    pq.write_table(table, path, row_group_size=256, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    place = content.rfind(b"Zeile 499"[:7], 0, len(content) * 3 // 4)
    middle = len(content) * 3 // 4 if place < 0 else place
    content[middle] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=r"a\.parquet is damaged after row 256: .*"):
        texts(path)


def test_invalid_utf8_in_a_column_is_refused(tmp_path):
    bad = pa.array([b"gut", b"schl\xe4cht"], pa.binary()).view(pa.string())
    with pytest.raises(RecipeError, match=r"a\.parquet is damaged after row 0: .*utf-8"):
        texts(parquet(tmp_path / "a.parquet", text=bad))


def identity(**source) -> object:
    opened = open_source("mine", Source(**source))
    assert isinstance(opened, OpenSource)
    return opened.describe_content()


def test_format_and_column_are_part_of_a_sources_identity(tmp_path):
    content = gzip.compress(b'{"text": "x", "body": "y"}')
    for name in ("a.jsonl.gz", "a.txt.gz", "b.jsonl.gz"):
        (tmp_path / name).write_bytes(content)
    lines, paragraphs, copy = (
        identity(files=(str(tmp_path / name),))
        for name in ("a.jsonl.gz", "a.txt.gz", "b.jsonl.gz")
    )
    column = identity(files=(str(tmp_path / "a.jsonl.gz"),), column="body")
    assert lines == copy
    assert lines not in (paragraphs, column)
