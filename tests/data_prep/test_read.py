import json
import os
from pathlib import Path

import pytest

from components.errors import RecipeError
from data_prep.read import WHOLE, Document, LocalFile, read_documents
from data_prep.sources import open_files

WHERE = "data.sources.mine.files"


def local(path: Path, content: bytes) -> LocalFile:
    path.write_bytes(content)
    return LocalFile(path=path, name=path.name, where=WHERE, column="text")


def texts(file: LocalFile) -> list[str]:
    return [document.text for document in read_documents([file])]


def names(*patterns: str) -> list[str]:
    return [file.name for file in open_files(patterns, WHERE, "text")]


def test_blank_lines_separate_documents(tmp_path):
    content = "\ufeff\n\nEins,\r\nzwei.\n \t\n\n\nDrei.\n\nDer Schluß".encode()
    assert texts(local(tmp_path / "a.txt", content)) == ["Eins,\nzwei.", "Drei.", "Der Schluß"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_kind_of_line_end_separates_the_same_documents(tmp_path, end):
    lines = [b"\xef\xbb\xbfEins,", b"zwei.", b"", b" ", b"Drei."]
    assert texts(local(tmp_path / "a.txt", end.join(lines))) == ["Eins,\nzwei.", "Drei."]
    records = [b'{"text": "a\\r\\nb"}', b"", b'{"text": "c"}', b""]
    assert texts(local(tmp_path / "a.jsonl", end.join(records))) == ["a\r\nb", "c"]
    assert texts(local(tmp_path / "a.py", end.join([b"x", b"", b"y", b""]))) == ["x\n\ny"]


def test_bytes_that_are_not_utf8_are_placed_between_line_ends_of_cr(tmp_path):
    file = local(tmp_path / "a.txt", b"gut\r\rschl\xe4cht\r\rgut")
    good, bad, again = file.iter_items()
    assert good == again == Document("gut")
    assert "is not UTF-8 at byte 9" in str(bad)


def test_a_file_of_code_or_markup_is_one_document(tmp_path):
    content = "# A\n\n    code\n\n\nend\n"
    for suffix in WHOLE:
        assert texts(local(tmp_path / f"a{suffix}", content.encode())) == [content[:-1]]


def test_files_without_text_are_skipped(tmp_path):
    empty = [
        local(tmp_path / name, content)
        for name, content in (("a.txt", b""), ("b.md", b" \r\n"), ("c.jsonl", b'{"text": ""}'))
    ]
    full = local(tmp_path / "d.txt", b"text")
    documents = read_documents([*empty, full, *empty])
    assert [document.text for document in documents] == ["text"]
    assert [file.is_empty() for file in (*empty, full)] == [True, True, True, False]
    with pytest.raises(RecipeError, match=r"a\.txt has no text"):
        list(read_documents(empty))


def test_each_jsonl_line_is_a_document_and_keeps_its_line_breaks(tmp_path):
    lines = [json.dumps({"text": "a\n\nb", "id": 1}), "", json.dumps({"text": "ž"})]
    content = "\n".join(lines).encode()
    assert texts(local(tmp_path / "a.jsonl", content)) == ["a\n\nb", "ž"]


def test_a_file_can_be_read_twice_and_keeps_indentation(tmp_path):
    file = local(tmp_path / "a.txt", b"a\n\ndef f():\n    return\n")
    assert texts(file) == texts(file) == ["a", "def f():\n    return"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt has no text"),
        ("a.txt", b" \n\n\t\n", r"a\.txt has no text"),
        ("a.jsonl", b"", r"a\.jsonl has no text"),
        ("a.txt", b"gut\nschl\xe4ch", r"a\.txt is not UTF-8 at byte 8\n  .*iconv"),
        ("a.txt", b"\xef\xbb\xbfab\xff", r"a\.txt is not UTF-8 at byte 5"),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', r"a\.jsonl:2 line 2 is not JSON"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1 line 1 is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n\n{"tekst": "b"}', r"a\.jsonl:3 line 3 has no text"),
        ("a.jsonl", b'{"text": 7}', r"a\.jsonl:1 line 1 has no text"),
        ("a.jsonl", b'["text"]', r"a\.jsonl:1 line 1 has no text"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"a\.jsonl:1 line 1 has a lone surrogate escape"),
    ],
)
def test_bad_content_is_named_with_its_place(tmp_path, name, content, message):
    with pytest.raises(RecipeError, match=rf"^data\.sources\.mine\.files: {message}"):
        texts(local(tmp_path / name, content))


def test_patterns_are_expanded_sorted_and_without_repetition(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).write_text("x")
    assert names("*.txt", "a.txt", "c.*") == ["a.txt", "b.txt", "c.jsonl"]
    assert names(f"{tmp_path}/*.txt") == [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"]
    (tmp_path / "[1].txt").write_text("x")  # the name looks like a pattern
    assert names("[1].txt") == ["[1].txt"]


@pytest.mark.parametrize("pattern", ["absent.txt", "*.jsonl"])
def test_a_pattern_without_a_file_is_refused(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"mine\.files: no file matches .*\n  .*relative to"):
        names(pattern)


def test_a_folder_and_an_unknown_suffix_are_refused(tmp_path):
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(RecipeError, match=r"mine\.files: .* is a folder, not .*\n  set a pat"):
        names(str(tmp_path))
    with pytest.raises(RecipeError, match=r"a\.pdf ends with none of \.txt, .*quet, .*\.gz"):
        names(str(tmp_path / "a.pdf"))


def test_a_file_that_cannot_be_opened_is_named_with_the_systems_reason(tmp_path):
    loop = tmp_path / "loop.txt"
    loop.symlink_to(loop)
    (file,) = open_files((str(loop),), WHERE, "text")
    with pytest.raises(RecipeError, match=r"loop\.txt cannot be read: Too many levels"):
        file.hash_input()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_named(tmp_path):
    file = local(tmp_path / "a.txt", b"a")
    file.path.chmod(0)
    with pytest.raises(RecipeError, match=r"a\.txt cannot be read: Permission denied"):
        file.hash_input()


def test_a_pipe_or_a_device_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    for pattern in ("pipe.txt", "zero.txt", "p*.txt", "*.txt"):
        with pytest.raises(RecipeError, match=r"mine\.files: .*\.txt is not a regular file"):
            names(str(tmp_path / pattern))
