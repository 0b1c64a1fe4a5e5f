"""A write that fails leaves nothing behind, and its error names the final place."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from command.outcome import Status, tell_error
from components.data.files import (
    complete_or_removed,
    create_atomically,
    create_folder,
    replace_atomically,
    write_atomically,
)

MANY = "x" * 100_000


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file grow beyond 4 KiB, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_text(folder: Path) -> None:
    (folder / "config.json").write_text(MANY)


def write_tensors(folder: Path) -> None:
    save_file({"a": torch.zeros(10_000)}, folder / "model.safetensors")


def write_tokenizer(folder: Path) -> None:
    pieces = {f"piece {number}": number for number in range(1000)}
    Tokenizer(models.WordLevel(pieces, "piece 0")).save(str(folder / "tokenizer.json"))


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("fill", [write_text, write_tensors, write_tokenizer])
def test_a_folder_that_cannot_be_written_is_removed_and_named(
    fill: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_folder_that_is_complete_takes_its_place(tmp_path: Path) -> None:
    left = tmp_path / ".exported.unfinished"
    left.mkdir()
    (left / "old").touch()
    with create_folder(tmp_path / "exported") as folder:
        write_text(folder)
    assert [file.name for file in (tmp_path / "exported").iterdir()] == ["config.json"]
    assert not left.exists()


def test_a_new_folder_is_removed_if_what_fills_it_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "merged" / "checkpoints").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt), complete_or_removed(tmp_path / "merged"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EROFS, errno.ENOSPC])
def test_an_error_of_the_file_system_is_not_a_fault_of_the_program(number: int) -> None:
    error = OSError(number, os.strerror(number), "x")
    assert tell_error(error, []) is Status.WRONG_INPUT
