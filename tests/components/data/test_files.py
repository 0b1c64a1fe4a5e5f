"""Files and folders are written whole or not at all, and checked against their records."""

import errno
import hashlib
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from command.outcome import Status, tell_error
from components.data.files import (
    HOST,
    FileRecord,
    complete_or_removed,
    create_atomically,
    create_folder,
    record_file,
    replace_atomically,
    verify_file,
    write_atomically,
)
from components.errors import RecipeError


@pytest.fixture
def record(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    return record_file(tmp_path / "a.bin")


def test_a_changed_file_is_named_with_what_differs(tmp_path, record):
    assert record == FileRecord("a.bin", hashlib.sha256(b"0123456789").hexdigest(), 10)
    verify_file(tmp_path, record, contents=True)
    for content, message in (
        (b"01234", r"is truncated: 5 bytes, the manifest says 10\n  delete its folder"),
        (b"0123456789x", "is longer than written: 11 bytes"),
        (b"0123456780", "was changed"),
    ):
        (tmp_path / "a.bin").write_bytes(content)
        with pytest.raises(RecipeError, match=rf"a\.bin: {message}"):
            verify_file(tmp_path, record, contents=True)
    verify_file(tmp_path, record, contents=False)  # an edit of equal size
    (tmp_path / "a.bin").unlink()
    with pytest.raises(RecipeError, match=r"a\.bin: is missing"):
        verify_file(tmp_path, record, contents=False)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, record):
    def fail():
        with replace_atomically(tmp_path / "a.bin") as file:
            file.write(b"half")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    verify_file(tmp_path, record, contents=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    with replace_atomically(tmp_path / "new") as file:
        file.write(b"content")
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "new").read_bytes() == b"content"


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_only_regular_files_are_replaced(make, tmp_path):
    make(tmp_path / "page.html")
    refused = pytest.raises(RecipeError, match=r"page\.html: is not a regular file")
    with refused, replace_atomically(tmp_path / "page.html"):
        pytest.fail("opened")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert not (tmp_path / "page.html").is_file()


def _replace(path: Path) -> None:
    with replace_atomically(path) as file:
        file.write(b"whole")


def _create(path: Path) -> None:
    with create_atomically(path, b"whole"):
        pass


def _create_folder(path: Path) -> None:
    with create_folder(path) as partial:
        (partial / "content").write_bytes(b"whole")


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of files that were open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("write", [_replace, _create, _create_folder])
def test_a_signal_after_any_call_leaves_no_partial_file(write, tmp_path):
    """Python runs a signal handler when a function starts and when a C call returns."""
    for moment in count(1):
        moments, folder = count(1), tmp_path / str(moment)
        folder.mkdir()

        def interrupt(
            _frame: FrameType, event: str, _value: object, moment=moment, moments=moments
        ) -> None:
            if event in {"call", "c_return"} and next(moments) == moment:
                raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            write(folder / "file")
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        assert {file.name for file in folder.iterdir()} <= {"file"}, moment
    assert moment > 20


ROOT = Path(__file__).resolve().parents[3]
MANY = "x" * 100_000
WRITERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "create_folder({})": create_folder,
    "replace_atomically({})": replace_atomically,
    "create_atomically({}, b'')": lambda path: create_atomically(path, b""),
}


@pytest.fixture
def small_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_text(folder: Path) -> None:
    (folder / "config.json").write_text(MANY)


def write_tensors(folder: Path) -> None:
    save_file({"a": torch.zeros(10_000)}, folder / "model.safetensors")


def copy_file(folder: Path) -> None:
    shutil.copyfile(torch.__file__, folder / "tokenizer.json")


def write_tokenizer(folder: Path) -> None:
    pieces = {f"piece {number}": number for number in range(1000)}
    Tokenizer(models.WordLevel(pieces, "piece 0")).save(str(folder / "tokenizer.json"))


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("fill", [write_text, write_tensors, write_tokenizer, copy_file])
def test_a_folder_that_cannot_be_written_is_removed(fill, tmp_path, capsys):
    target = tmp_path / "exported"
    too_large = pytest.raises(OSError, match="File too large")
    with too_large as failed, create_folder(target) as folder:
        fill(folder)
    assert failed.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []
    assert tell_error(failed.value, []) is Status.WRONG_INPUT
    assert capsys.readouterr().err.startswith(f"{target}: File too large\n")


@pytest.mark.usefixtures("small_files")
def test_a_file_that_cannot_be_written_is_removed_and_named(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("before")
    with pytest.raises(OSError, match="File too large") as failed:
        write_atomically(target, MANY)
    assert failed.value.filename == str(target)
    too_large = pytest.raises(OSError, match="File too large")
    with too_large as failed, create_atomically(tmp_path / "new.yaml", MANY.encode()):
        pass
    assert failed.value.filename == str(tmp_path / "new.yaml")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert target.read_text() == "before"


def test_errors_of_other_files_keep_their_names(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as failed, create_folder(tmp_path / "exported"):
        (tmp_path / "source").read_text()
    assert failed.value.filename == str(tmp_path / "source")
    with pytest.raises(ZeroDivisionError), replace_atomically(tmp_path / "file"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "merged" / "checkpoints").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt), complete_or_removed(tmp_path / "merged"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def start_writing(target: Path, how: str) -> subprocess.Popen[str]:
    """Start a writer that prints the names of the files in its folder, then waits."""
    program = f"""
import os, sys
from pathlib import Path
from components.data.files import create_atomically, create_folder, replace_atomically
with {how.format("Path(sys.argv[1])")}:
    print(*os.listdir(Path(sys.argv[1]).parent), flush=True)
    sys.stdin.read()
"""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program, str(target)], cwd=ROOT, **pipes)


@pytest.mark.parametrize("is_unlocked", [False, True])
@pytest.mark.parametrize("how", WRITERS)
def test_a_writer_removes_only_files_of_killed_writers(how, is_unlocked, tmp_path, monkeypatch):
    target = tmp_path / "plan.html"

    def write() -> None:
        with WRITERS[how](target) as place:
            if how.startswith("create_folder"):
                write_text(place)

    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    if is_unlocked:
        monkeypatch.setattr("fcntl.flock", refuse)
    with start_writing(target, how) as process:
        assert process.stdout is not None
        left = process.stdout.readline().split()
        write()
        assert sorted(file.name for file in tmp_path.iterdir()) == [*left, "plan.html"]
        process.kill()
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    write()
    expected = [*left, "plan.html"] if is_unlocked else ["plan.html"]
    assert sorted(file.name for file in tmp_path.iterdir()) == expected


def test_a_concurrently_written_folder_is_kept(tmp_path: Path) -> None:
    def write_twice() -> None:
        with create_folder(tmp_path / "hf") as first, create_folder(tmp_path / "hf") as second:
            write_text(first)
            (second / "config.json").write_text("second")

    with pytest.raises(OSError, match="not empty") as failed:
        write_twice()
    assert (tmp_path / "hf" / "config.json").read_text() == "second"
    assert [file.name for file in tmp_path.iterdir()] == ["hf"]
    assert tell_error(failed.value, []) is Status.WRONG_INPUT


def test_a_long_name_is_written_and_a_hidden_link_is_kept(tmp_path: Path) -> None:
    file = tmp_path / ("ü" * 125 + ".html")
    write_atomically(file, MANY)
    assert list(tmp_path.iterdir()) == [file]
    (tmp_path / "own").write_text("own")
    hidden = tmp_path / f".plan.html.{HOST}-0.partial"
    hidden.symlink_to("own")
    write_atomically(tmp_path / "plan.html", MANY)
    assert (hidden.is_symlink(), hidden.read_text()) == (True, "own")


def test_file_system_errors_are_reported_as_wrong_input() -> None:
    for number in (errno.EIO, errno.ESTALE, errno.EROFS, errno.ENOSPC):
        error = OSError(number, os.strerror(number), "x")
        assert tell_error(error, []) is Status.WRONG_INPUT
