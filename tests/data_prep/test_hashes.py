"""The cache of hashes: reused entries, and files that are hashed again."""

import hashlib
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from components.config.schema.data import Source
from components.data import files
from components.data.files import HashCache, TextHash, hash_file
from data_prep import sources as opening
from data_prep.corpus import Corpus
from data_prep.read import Document
from data_prep.sources import Library, open_embedded, open_source
from tests.data_prep.corpora import MANY_TASKS, preparation_of, runner_of, write_corpus


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of hashed files."""
    names: list[str] = []

    def spy(path: Path, start: int = 0, end: int | None = None) -> str:
        names.append(path.name)
        return hash_file(path, start, end)

    monkeypatch.setattr(files, "hash_file", spy)
    return names


def cache(folder: Path, *, later_seconds: float = 3_600) -> HashCache:
    """Return the cache of a command that starts an hour after the files were written."""
    return HashCache(path=folder / "hashes.jsonl", now=lambda: time.time() + later_seconds)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_is_read_once_by_all_commands_together(tmp_path, read):
    file = tmp_path / "a.txt"
    file.write_bytes(b"abcdef")
    for _ in range(3):
        hashed = cache(tmp_path)
        assert hashed(file) == hashed(file) == sha256(b"abcdef")
    assert read == ["a.txt"]
    assert cache(tmp_path)(file, 2, 4) == sha256(b"cd")
    assert cache(tmp_path)(file, 2, None) == sha256(b"cdef")


def test_a_change_of_equal_size_and_time_is_detected(tmp_path, read):
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    before = file.stat()
    assert cache(tmp_path)(file) == sha256(b"abc")
    time.sleep(0.02)  # the clock of the file system ticks
    with file.open("r+b") as same_inode:
        same_inode.write(b"xyz")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (3, before.st_mtime_ns)
    assert cache(tmp_path)(file) == sha256(b"xyz")
    assert cache(tmp_path)(file) == sha256(b"xyz")
    assert read == ["a.txt", "a.txt"]


def test_a_replaced_file_is_detected(tmp_path):
    file, other = tmp_path / "a.txt", tmp_path / "b.txt"
    file.write_bytes(b"abc")
    other.write_bytes(b"xyz")
    cache(tmp_path)(file)
    other.rename(file)
    assert cache(tmp_path)(file) == sha256(b"xyz")


def test_a_recently_changed_file_is_not_cached(tmp_path, read):
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    for _ in range(2):
        cache(tmp_path, later_seconds=0)(file)
    assert read == ["a.txt", "a.txt"]


def test_a_truncated_cache_line_affects_only_its_file(tmp_path, read):
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
        cache(tmp_path)(tmp_path / name)
    lines = (tmp_path / "hashes.jsonl").read_bytes()
    (tmp_path / "hashes.jsonl").write_bytes(lines[:-20] + b'\n[1]\n{"file": 3}\n')
    read.clear()
    assert [cache(tmp_path)(tmp_path / name) for name in "ab"] == [sha256(b"a"), sha256(b"b")]
    assert read == ["b"]


def test_files_are_read_without_a_writable_cache(tmp_path, read):
    (tmp_path / "file").write_bytes(b"abc")
    for _ in range(2):
        assert cache(tmp_path / "file")(tmp_path / "file") == sha256(b"abc")
    assert read == ["file", "file"]


def test_a_second_preparation_hashes_neither_inputs_nor_shards(tmp_path, read):
    sources = write_corpus(tmp_path / "texts")

    def prepare() -> object:
        corpus = Corpus(
            sources=sources,
            preparation=preparation_of(**MANY_TASKS),
            runner=runner_of(tmp_path / "stages"),
            hashed=cache(tmp_path),
        )
        return corpus.run_stages()

    first = prepare()
    assert len(read) > 20
    read.clear()
    assert prepare() == first
    assert read == []
    de = tmp_path / "texts" / "de.txt"
    de.write_bytes(de.read_bytes().replace(b"a", b"o"))
    assert prepare() != first
    assert set(read) > {"de.txt"}


def test_a_removed_file_is_refused_as_without_the_cache(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("text")
    source = Source(files=(str(file),))
    opened = open_source("mine", source, cache(tmp_path))
    file.unlink()
    with pytest.raises(FileNotFoundError):
        cache(tmp_path)(file)
    with pytest.raises(Exception, match="cannot be read"):
        opened.inputs[0].hash_input(cache(tmp_path))


def test_a_text_is_drawn_once_per_origin(tmp_path):
    drawn: list[str] = []

    def draw(origin: str) -> TextHash:
        drawn.append(origin)
        return sha256(origin.encode()), len(origin)

    for origin in ("one", "one", "other", "one"):
        found = cache(tmp_path).hash_drawn_text(origin, partial(draw, origin))
        assert found == (sha256(origin.encode()), len(origin))
    assert drawn == ["one", "other"]


def test_invalid_cache_lines_are_ignored(tmp_path):
    expected = ("a", 1)
    cache(tmp_path).hash_drawn_text("one", lambda: expected)
    with (tmp_path / "hashes.jsonl").open("a") as file:
        file.write('{"drawn": "two"}\n[]\n3\n{"file": ["a"], "state": []}\n{"drawn": "thr')
    again = cache(tmp_path).hash_drawn_text("one", lambda: pytest.fail("drawn again"))
    assert again == expected


@pytest.mark.long
@pytest.mark.parametrize("name", ["python/source", "python/docs"])
def test_the_library_is_drawn_again_once_it_or_the_code_changes(tmp_path, monkeypatch, name):
    library = open_embedded(name, "data.sources.python.embedded")
    assert isinstance(library, Library)
    expected = library.hash_input(cache(tmp_path))
    assert expected == library.hash_input()
    unread = replace(library, read=lambda: pytest.fail("drawn again"))
    assert unread.hash_input(cache(tmp_path)) == expected
    other = (Document("x = 1", "other.py"), *opening.library_source())
    monkeypatch.setattr(opening, "library_source", lambda: other)
    opening._origin.cache_clear()
    try:
        changed = replace(library, read=lambda: other[:1])
        assert changed.hash_input(cache(tmp_path)).bytes == len("x = 1")
    finally:
        opening._origin.cache_clear()
