"""Whatever lies at the path: a mapping, or one message, soon and without much memory."""

import os
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.json_file import DEEPEST, read_mapping


def nested(depth: int) -> bytes:
    return b'{"a": ' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "is not JSON: Expecting value"),
        (b'{"a": 1', "is not JSON: Expecting ',' delimiter"),
        (b"[]", "is a list, not a mapping"),
        (b"7", "is a int, not a mapping"),
        (b'{"a": "\xff"}', "is not UTF-8 text at byte 8"),
        (b'{"a": NaN}', "has a number that is not finite: NaN"),
        (b'{"a": -Infinity}', "has a number that is not finite: -Infinity"),
        (b'{"a": 1e999}', "has a number that is not finite: 1e999"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "has a number of 5000 digits: 99999"),
        (b'{"a": 99999999999999999999}', "has a number of 20 digits"),
        (nested(100_000), f"is nested deeper than {DEEPEST}"),
        (nested(70), f"is nested deeper than {DEEPEST}"),
    ],
)
def test_damaged_or_excessive_json_is_refused(tmp_path: Path, raw: bytes, problem: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(raw)
    with pytest.raises(RecipeError) as caught:
        read_mapping(file, remedy="mend it")
    assert caught.value.path == str(file)
    assert caught.value.problem.startswith(problem)
    assert caught.value.remedy == "mend it"


def test_a_pipe_a_folder_and_a_large_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(RecipeError, match="is not a regular file"):
            read_mapping(tmp_path / name)
    with pytest.raises(RecipeError, match="cannot be read: No such file"):
        read_mapping(tmp_path / "nothing")
    file = tmp_path / "large.json"
    with file.open("wb") as stream:
        stream.truncate(1 << 30)  # sparse: it takes no room
    with pytest.raises(RecipeError, match="is larger than 16 MiB"):
        read_mapping(file)


def test_nan_and_infinity_are_read_from_files_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"loss": NaN, "deep": ' + "[" * 60 + "]" * 60 + "}")
    tree = read_mapping(file, finite=False)
    assert tree["loss"] != tree["loss"]
    assert list(tree) == ["loss", "deep"]
