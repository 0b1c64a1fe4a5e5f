import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from components.config.schema.data import Source
from components.errors import RecipeError
from data_prep.read import KINDS, kind_of
from data_prep.sources import OpenSource, open_files, open_source

WHERE = "data.sources.mine.files"
TEXTS = [f"Zeile {number}: žluť\nund weiter" for number in range(500)]
JSONL = "\n".join(json.dumps({"text": text, "body": text[::-1]}) for text in TEXTS).encode()


def packed_gz(content: bytes) -> bytes:
    """Two members in a row, as parallel compressors write."""
    half = len(content) // 2
    return gzip.compress(content[:half]) + gzip.compress(content[half:])


def packed_zst(content: bytes) -> bytes:
    """Two frames in a row, each with a checksum as the command line writes it."""
    half = len(content) // 2
    pack = zstandard.ZstdCompressor(write_checksum=True).compress
    return pack(content[:half]) + pack(content[half:])


PACKERS = {".gz": packed_gz, ".zst": packed_zst}


def texts(path: Path, column: str = "text") -> list[str]:
    (file,) = open_files((str(path),), WHERE, column)
    return [document.text for document in file.documents()]


@pytest.mark.parametrize("suffix", PACKERS)
def test_packed_lines_are_the_plain_ones(tmp_path, suffix):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(PACKERS[suffix](JSONL))
    assert texts(path) == TEXTS
    assert texts(path, "body") == [text[::-1] for text in TEXTS]


@pytest.mark.parametrize("suffix", PACKERS)
def test_packed_paragraphs_are_the_plain_ones(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACKERS[suffix]("\ufeffEins\n\nzwei\ndrei".encode()))
    assert texts(path) == ["Eins", "zwei\ndrei"]


DAMAGES = {
    "cut short": lambda content: content[:-20],
    "cut between": lambda content: content[: len(content) // 3],
    "one byte changed": lambda content: content[:900] + b"\x00" + content[901:],
    "something behind": lambda content: content + b"more",
    "not packed at all": lambda _: JSONL,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("suffix", PACKERS)
def test_a_damaged_stream_is_named_with_its_place(tmp_path, suffix, damage):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(damage(PACKERS[suffix](JSONL)))
    with pytest.raises(RecipeError, match=rf"mine\.files: .*a\.jsonl\{suffix} is damaged beh"):
        texts(path)


@pytest.mark.parametrize("suffix", PACKERS)
def test_an_empty_packed_file_holds_no_text(tmp_path, suffix):
    (tmp_path / f"a.txt{suffix}").touch()
    with pytest.raises(RecipeError, match="holds no text"):
        texts(tmp_path / f"a.txt{suffix}")


def test_bytes_that_are_not_utf8_are_counted_in_the_unpacked_text(tmp_path):
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
    with pytest.raises(RecipeError, match=r"a\.txt has a paragraph of more than 50 char"):
        texts(path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_name_says_the_format(kind):
    assert kind_of(f"part.0.{kind}") == kind
    assert kind_of(f"part{kind}.bak") is None


def parquet(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_column_of_strings_is_read_row_by_row(tmp_path, kind):
    path = parquet(tmp_path / "a.parquet", text=pa.array([*TEXTS, " "], kind))
    assert texts(path) == TEXTS
    path = parquet(tmp_path / "b.parquet", id=range(500), body=pa.array(TEXTS, kind))
    assert texts(path, "body") == TEXTS


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"id": [1], "body": ["x"]},
            r"mine\.column: .*parquet has no column 'text'\n.*id, b",
        ),
        ({"text": [1, 2]}, r"mine\.column: .*a\.parquet holds no strings in 'text', but int64"),
        ({"text": [b"x"]}, r"mine\.column: .* holds no strings in 'text', but binary"),
        ({"text": ["x", None]}, r"mine\.files: .*a\.parquet row 2 has no text"),
        ({"text": [" ", ""]}, r"mine\.files: .*a\.parquet holds no text"),
        ({"text": pa.array([], pa.string())}, r"mine\.files: .*a\.parquet holds no text"),
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
    with pytest.raises(RecipeError, match=r"a\.parquet is damaged behind row 0: .*\n  copy"):
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
    with pytest.raises(RecipeError, match=r"a\.parquet is damaged behind row 256: .*"):
        texts(path)


def test_bytes_that_are_no_utf8_in_a_column_are_refused(tmp_path):
    bad = pa.array([b"gut", b"schl\xe4cht"], pa.binary()).view(pa.string())
    with pytest.raises(RecipeError, match=r"a\.parquet is damaged behind row 0: .*utf-8"):
        texts(parquet(tmp_path / "a.parquet", text=bad))


def identity(**source) -> object:
    opened = open_source("mine", Source(**source))
    assert isinstance(opened, OpenSource)
    return opened.identity()


def test_format_and_column_belong_to_what_a_source_is(tmp_path):
    content = gzip.compress(b'{"text": "x", "body": "y"}')
    for name in ("a.jsonl.gz", "a.txt.gz", "b.jsonl.gz"):
        (tmp_path / name).write_bytes(content)
    lines, paragraphs, elsewhere = (
        identity(files=(str(tmp_path / name),))
        for name in ("a.jsonl.gz", "a.txt.gz", "b.jsonl.gz")
    )
    other = identity(files=(str(tmp_path / "a.jsonl.gz"),), column="body")
    assert lines == elsewhere
    assert lines != paragraphs
    assert lines != other
