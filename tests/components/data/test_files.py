import hashlib
import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType

import pytest

from components.data.files import (
    FileRecord,
    create_atomically,
    create_folder,
    record_file,
    replace_atomically,
    verify_file,
)
from components.errors import RecipeError


@pytest.fixture
def record(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    return record_file(tmp_path / "a.bin")


def test_a_record_states_name_size_and_hash(record):
    assert record == FileRecord("a.bin", hashlib.sha256(b"0123456789").hexdigest(), 10)


def test_an_untouched_file_passes(tmp_path, record):
    verify_file(tmp_path, record, contents=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"01234", r"a\.bin: is truncated: 5 bytes, the manifest says 10\n  delete its folder"),
        (b"0123456789x", r"a\.bin: is longer than written: 11 bytes"),
        (b"0123456780", r"a\.bin: was changed"),
    ],
)
def test_a_changed_file_is_named_with_what_differs(tmp_path, record, content, message):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(RecipeError, match=message):
        verify_file(tmp_path, record, contents=True)


def test_an_edit_of_equal_size_passes_without_the_contents(tmp_path, record):
    (tmp_path / "a.bin").write_bytes(b"0123456780")
    verify_file(tmp_path, record, contents=False)


def test_a_missing_file_is_named(tmp_path, record):
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


def test_nothing_has_the_name_before_the_write_is_complete(tmp_path):
    with replace_atomically(tmp_path / "new") as file:
        file.write(b"content")
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "new").read_bytes() == b"content"


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_is_not_replaced(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "page.html")
    with (
        pytest.raises(RecipeError, match=r"page\.html: is not a regular file"),
        replace_atomically(tmp_path / "page.html"),
    ):
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


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of what was open just then
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("write", [_replace, _create, _create_folder])
def test_a_signal_after_any_call_leaves_no_partial_file(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    """Python runs the handler of a signal where a function begins and where a C call ends."""
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
