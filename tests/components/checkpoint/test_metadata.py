"""The marker comes back as it was written, or not at all."""

import json
import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.checkpoint.metadata import (
    MARKER,
    DamagedCheckpointError,
    FileSection,
    Marker,
    RunProgress,
    _digest,
    complete_checkpoints,
    newest_checkpoint,
    read_marker,
)
from components.errors import RecipeError

SCALE = {"scale": 8.0, "hysteresis_left": 2, "good_steps": 5}
A_MARKER = Marker(
    kind="tokens",
    fingerprint="f0",
    progress=RunProgress(step=3, tokens=30, loss_scale=SCALE),
    held_out_loss=2.5,
    files={"a.safetensors": (FileSection(3, "ab"), FileSection(4, "cd"))},
)


def write(folder: Path, text: bytes) -> Path:
    (folder / MARKER).write_bytes(text)
    return folder


def test_a_written_marker_is_read_unchanged(tmp_path: Path) -> None:
    assert read_marker(write(tmp_path, A_MARKER.to_json().encode())) == A_MARKER
    assert (A_MARKER.folder_name, A_MARKER.total_bytes) == ("tokens-000000000000030", 7)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_valid_json(tmp_path, loss: float) -> None:
    text = replace(A_MARKER, held_out_loss=loss).to_json()
    assert json.loads(text, parse_constant=pytest.fail)["held_out_loss"] is None
    assert read_marker(write(tmp_path, text.encode())).held_out_loss is None
    tree = {**json.loads(text), "held_out_loss": math.nan}  # as an earlier version wrote it
    del tree["sha256"]
    text = json.dumps(tree | {"sha256": _digest(tree)}, indent=1)
    assert str(read_marker(write(tmp_path, text.encode())).held_out_loss) == "nan"


@given(st.data())
def test_any_changed_byte_is_detected(data: st.DataObject) -> None:
    text = bytearray(A_MARKER.to_json().encode())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    with TemporaryDirectory() as name:
        try:
            found = read_marker(write(Path(name), bytes(text)))
        except RecipeError:
            return
    assert found == A_MARKER  # a space that became another one


@given(st.integers(0, len(A_MARKER.to_json()) - 2))
def test_a_marker_cut_short_is_damaged(length: int) -> None:
    with TemporaryDirectory() as name, pytest.raises(DamagedCheckpointError):
        read_marker(write(Path(name), A_MARKER.to_json().encode()[:length]))


@pytest.mark.parametrize("text", ["[]", "3", "null", '{"format": 1}', "{}"])
def test_other_text_than_a_marker_is_damaged(tmp_path: Path, text: str) -> None:
    with pytest.raises(DamagedCheckpointError, match=MARKER):
        read_marker(write(tmp_path, text.encode()))


def test_another_format_is_not_called_damaged(tmp_path, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr("components.checkpoint.metadata.FORMAT", 2)
        write(tmp_path, A_MARKER.to_json().encode())
    with pytest.raises(RecipeError, match="has format 2, but this version reads") as caught:
        read_marker(tmp_path)
    assert not isinstance(caught.value, DamagedCheckpointError)


def test_a_folder_without_a_marker_is_not_a_checkpoint(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    for name, complete in (("tokens-02", True), ("tokens-10", True), ("tokens-11", False)):
        (tmp_path / name).mkdir()
        if complete:
            write(tmp_path / name, A_MARKER.to_json().encode())
    assert newest_checkpoint(tmp_path) == tmp_path / "tokens-10"
    assert [one.name for one in complete_checkpoints(tmp_path)] == ["tokens-10", "tokens-02"]
