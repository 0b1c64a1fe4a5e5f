"""Invalid input and failures of the machine give clear errors; no loss is silent."""

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from components.config.schema.data import Source
from components.errors import RecipeError
from data_prep.read import LocalFile
from data_prep.stages.clean import read_piece
from data_prep.stages.plan import make_whole_piece
from data_prep.stages.runner import Local, Say, explain_full_disk
from tests.data_prep.corpora import EXACT, clean, digest_of, texts_of, write_corpus

HERE = Local(workers=1)
REMOVE: dict[str, Any] = {"read": {"invalid": "remove", "longest_bytes": "any"}}


@dataclass(frozen=True)
class Before:
    """Act between the hashing and the reading of inputs, then run the tasks."""

    act: Callable[[], object]

    def run_tasks(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        self.act()
        HERE.run_tasks(folder, tasks, say)


@pytest.fixture
def one(tmp_path: Path) -> Callable[..., dict[str, Source]]:
    """Write one file as the only source."""

    def make(name: str, content: bytes) -> dict[str, Source]:
        (tmp_path / name).write_bytes(content)
        return {"mine": Source(files=(str(tmp_path / name),))}

    return make


def test_an_input_that_vanishes_after_it_was_listed_is_named(one, tmp_path):
    source = one("a.txt", b"one\n\ntwo")
    gone = Before((tmp_path / "a.txt").unlink)
    message = r"data\.sources\.mine: .*a\.txt was removed after it was hashed\n  run the comma"
    with pytest.raises(RecipeError, match=message):
        clean(source, tmp_path / "stages", executor=gone)


@pytest.mark.parametrize("content", [b"one\n\ntoo", b"one\n\ntwo\n\nthree"])
def test_an_input_that_changes_after_it_was_hashed_is_named(one, tmp_path, content):
    source = one("a.txt", b"one\n\ntwo")
    edited = Before(lambda: (tmp_path / "a.txt").write_bytes(content))
    with pytest.raises(RecipeError, match=r"a\.txt was changed after it was hashed"):
        clean(source, tmp_path / "stages", executor=edited)
    texts = texts_of(clean(source, tmp_path / "stages"))
    assert texts == {"mine": content.decode().split("\n\n")}


def test_an_input_that_changes_while_it_is_read_is_named(one, tmp_path):
    one("a.txt", b"one\n\ntwo\n\n" * 10_000)
    file = tmp_path / "a.txt"
    record = LocalFile(path=file, name="a.txt", where="here", column="text").hash_input()
    items = read_piece("mine", Source(), make_whole_piece(file, record))
    next(items)
    with file.open("ab") as more:
        more.write(b"\n\nlate")
    with pytest.raises(RecipeError, match=r"a\.txt was changed while it was read"):
        list(items)


BROKEN = b'{"text": "one"}\n{"text": "tw\xff"}\n{"tekst": "x"}\n{"text"\n{"text": "five"}\n'


def test_an_invalid_document_is_refused_with_its_place_and_two_remedies(one, tmp_path):
    message = r"a\.jsonl is not UTF-8 at byte 28\n  convert .*read\.invalid=remove to rem"
    with pytest.raises(RecipeError, match=message):
        clean(one("a.jsonl", BROKEN), tmp_path / "stages")


def test_invalid_documents_are_counted_and_removed_on_request(one, tmp_path):
    cleaned = clean(one("a.jsonl", BROKEN), tmp_path / "stages", **REMOVE)
    assert texts_of(cleaned) == {"mine": ["one", "five"]}
    counts = cleaned.stages["clean"].sources["mine"]
    assert (counts.documents_in, counts.removed) == (5, {"invalid": 3})
    (manifest,) = (tmp_path / "stages").glob("*/manifest.json")
    examples = json.loads(manifest.read_text())["tally"]["examples"]["invalid"]
    assert "is not UTF-8 at byte 28" in examples[0]["why"]
    assert "a.jsonl:3 line 3 has no text" in examples[1]["why"]


def test_the_whole_paragraph_of_an_invalid_line_is_removed(one, tmp_path):
    source = one("a.txt", b"one\nun\xffo\nuno\n\ntwo")
    cleaned = clean(source, tmp_path / "stages", **REMOVE)
    assert texts_of(cleaned) == {"mine": ["two"]}
    assert cleaned.stages["clean"].sources["mine"].removed == {"invalid": 1}


def test_the_place_of_an_error_counts_from_the_beginning_of_the_task(one, tmp_path):
    content = b'{"text": "one"}\n' * 4 + b'{"tekst": "x"}\n'
    message = r"a\.jsonl \(lines counted from byte 48\):2 line 2 has no text"
    with pytest.raises(RecipeError, match=message):
        clean(one("a.jsonl", content), tmp_path / "stages", shard_bytes=40)


def test_empty_documents_are_counted(one, tmp_path):
    lines = [json.dumps({"text": text}) for text in ("", " \n\t", "word", "\u2003")]
    cleaned = clean(one("a.jsonl", "\n".join(lines).encode()), tmp_path / "stages")
    assert cleaned.stages["clean"].sources["mine"].removed == {"empty": 3}
    assert texts_of(cleaned) == {"mine": ["word"]}


def test_an_empty_file_among_others_is_ignored(one, tmp_path):
    one("a.txt", b"one")
    (tmp_path / "b.txt").touch()
    source = {"mine": Source(files=(f"{tmp_path}/?.txt",))}
    assert texts_of(clean(source, tmp_path / "s", shard_bytes=2, **EXACT)) == {"mine": ["one"]}


def test_zero_bytes_in_a_text_are_kept(one, tmp_path):
    source = one("a.txt", b"one\0two\n\n\0\n\nthree")
    assert texts_of(clean(source, tmp_path / "stages")) == {"mine": ["one\0two", "\0", "three"]}


def test_one_line_of_three_megabytes_is_a_document_or_too_long(one, tmp_path):
    huge = "wort " * 600_000
    source = one("a.jsonl", json.dumps({"text": huge}).encode() + b'\n{"text": "b"}\n')
    assert texts_of(clean(source, tmp_path / "any", **REMOVE)) == {"mine": [huge, "b"]}
    limit: dict[str, Any] = {"read": {"invalid": "refuse", "longest_bytes": 1_000_000}}
    cleaned = clean(source, tmp_path / "limit", **limit)
    assert texts_of(cleaned) == {"mine": ["b"]}
    assert cleaned.stages["clean"].sources["mine"].removed == {"too long": 1}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_finished_tasks_survive_a_full_disk(tmp_path, small_disk):
    sources = write_corpus(tmp_path / "texts")
    whole_digest = digest_of(clean(sources, tmp_path / "stages", **EXACT))
    message = r"data\.folder: no space left in .*clean-.*\n  free space"
    with pytest.raises(RecipeError, match=message):
        clean(sources, small_disk / "stages", **EXACT)
    assert not list(small_disk.rglob("*.partial"))
    done = {file: file.stat().st_mtime_ns for file in small_disk.rglob("*.zst")}
    assert done
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert digest_of(clean(sources, small_disk / "stages", **EXACT)) == whole_digest
    now = {file: file.stat().st_mtime_ns for file in done}
    assert sum(now[file] != done[file] for file in done) <= 1  # the task without a record


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_full_quota_are_explained(tmp_path, number):
    message = rf"data\.folder: no space left in {tmp_path}.*{os.strerror(number)}"
    with pytest.raises(RecipeError, match=message), explain_full_disk(tmp_path):
        raise OSError(number, os.strerror(number))


def test_other_system_errors_are_unchanged(tmp_path):
    with pytest.raises(OSError, match="Input/output"), explain_full_disk(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
