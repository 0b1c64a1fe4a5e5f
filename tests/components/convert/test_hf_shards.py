"""Shards have every tensor once, within their bound, in files named as on the hub."""

import json
import os
from pathlib import Path
from stat import S_IMODE

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from components.convert.hf_shards import INDEX, SINGLE, ShardReader, write_shards
from components.errors import RecipeError


def tensors() -> list[tuple[str, Tensor]]:
    """Return tensors of 40 bytes and a large one; ``a`` and ``b`` share a storage."""
    a, b = torch.arange(20.0).split(10)
    return [("a", a), ("b", b), ("large", torch.arange(100.0)), ("c", torch.ones(10))]


def test_shards_stay_within_their_bound_except_for_a_larger_tensor(tmp_path):
    assert write_shards(tmp_path, tensors(), max_bytes=80) == 520
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": 520}
    first, second, third = (f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))
    assert index["weight_map"] == {"a": first, "b": first, "large": second, "c": third}
    assert {file.name for file in tmp_path.iterdir()} == {INDEX, first, second, third}


def test_one_shard_has_no_index_and_names_its_format(tmp_path: Path) -> None:
    write_shards(tmp_path, tensors(), max_bytes=1_000)
    assert [file.name for file in tmp_path.iterdir()] == [SINGLE]
    with safe_open(tmp_path / SINGLE, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_the_umask_applies_to_shards(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_shards(tmp_path, tensors(), max_bytes=80)
    finally:
        os.umask(before)
    modes = {file.name: S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert set(modes.values()) == {0o666 & ~umask}, modes


@pytest.mark.parametrize("max_bytes", [40, 1_000])
def test_tensors_are_read_as_written(tmp_path: Path, max_bytes: int) -> None:
    write_shards(tmp_path, tensors(), max_bytes=max_bytes)
    with ShardReader(tmp_path) as reader:
        assert sorted(reader.list_tensors()) == ["a", "b", "c", "large"]
        for name, tensor in tensors():
            assert torch.equal(reader.read_tensor(name), tensor)
            assert reader.read_shape(name) == tuple(tensor.shape)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_an_invalid_index_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(RecipeError, match=r"index\.json: .*\n  fetch the folder again"):
        ShardReader(tmp_path)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.int8, torch.int32, torch.uint32, torch.uint64, torch.bool, torch.complex64),
        *(torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
    ],
)
def test_types_that_weights_cannot_have_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(16, dtype=torch.uint8).view(dtype)}, tmp_path / SINGLE)
    with ShardReader(tmp_path) as reader, pytest.raises(RecipeError, match=f"is {dtype}"):
        reader.read_tensor("a")


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADER = {"a": F32}


@pytest.mark.parametrize(
    "header",
    [
        *("", "{", "[]", '{"a": NaN}', '{"a":' * 200_000, '{"\\ud800": 1}'),
        *(json.dumps({"a": F32 | {"shape": s}}) for s in ([3], [-2], [2.0], [2**63, 2])),
        *(json.dumps({"a": F32 | {"data_offsets": o}}) for o in ([0, 4], [8, 16])),
        json.dumps({"a": F32 | {"dtype": "F64"}}),
        json.dumps(HEADER | {"b": F32}),
        json.dumps(HEADER | {"__metadata__": {"a": [1]}}),
    ],
)
def test_a_wrong_header_is_refused(header: str, tmp_path: Path) -> None:
    length = len(header).to_bytes(8, "little")
    (tmp_path / SINGLE).write_bytes(length + header.encode() + bytes(8))
    with pytest.raises(RecipeError, match=r"model\.safetensors: cannot be read"):
        ShardReader(tmp_path)


@pytest.mark.parametrize("length", [2, 3, 1 << 30, 2**63, 2**64 - 1])
def test_the_length_of_a_header_is_checked(length: int, tmp_path: Path) -> None:
    (tmp_path / SINGLE).write_bytes(length.to_bytes(8, "little") + b"{")
    with pytest.raises(RecipeError, match=r"model\.safetensors: cannot be read"):
        ShardReader(tmp_path)


@pytest.mark.parametrize("file", ["", ".", "..", "/etc/passwd", "a\0b", "\ud800", "a" * 300, 3])
def test_an_index_with_a_file_outside_the_folder_is_refused(file, tmp_path):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(RecipeError), ShardReader(tmp_path) as reader:
        reader.read_shape("a")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(RecipeError, match=r"'\.\./x\.safetensors' is not in this folder"):
        ShardReader(tmp_path)


@pytest.mark.parametrize("target", [None, "/dev/zero", "gone"])
def test_a_shard_that_is_not_a_file_is_refused(target: str | None, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "x"}}))
    if target is None:
        os.mkfifo(tmp_path / "x")
    else:
        (tmp_path / "x").symlink_to(target)
    with ShardReader(tmp_path) as reader, pytest.raises(RecipeError, match="/x: "):
        reader.read_tensor("a")
