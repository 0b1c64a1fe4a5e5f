"""Shards hold every tensor once, within their bound, under the names that the hub uses."""

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
    """Forty bytes each, but for a large one; two are views of one storage."""
    whole = torch.arange(20.0)
    large = torch.arange(100.0)
    return [("a", whole[:10]), ("b", whole[10:]), ("large", large), ("c", torch.ones(10))]


def test_shards_stay_within_their_bound_and_a_larger_tensor_stands_alone(tmp_path):
    assert write_shards(tmp_path, tensors(), max_bytes=80) == 520
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": 520}
    first, second, third = (f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))
    assert index["weight_map"] == {"a": first, "b": first, "large": second, "c": third}
    assert {file.name for file in tmp_path.iterdir()} == {INDEX, first, second, third}


def test_one_shard_needs_no_index_and_says_who_can_read_it(tmp_path: Path) -> None:
    write_shards(tmp_path, tensors(), max_bytes=1_000)
    assert [file.name for file in tmp_path.iterdir()] == [SINGLE]
    with safe_open(tmp_path / SINGLE, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_shards_have_the_mode_that_the_umask_gives_any_file(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_shards(tmp_path, tensors(), max_bytes=80)
    finally:
        os.umask(before)
    modes = {file.name: S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert set(modes.values()) == {0o666 & ~umask}, modes


@pytest.mark.parametrize("max_bytes", [40, 1_000])
def test_what_is_read_is_what_was_written(tmp_path: Path, max_bytes: int) -> None:
    write_shards(tmp_path, tensors(), max_bytes=max_bytes)
    with ShardReader(tmp_path) as reader:
        assert sorted(reader.list_tensors()) == ["a", "b", "c", "large"]
        for name, tensor in tensors():
            assert torch.equal(reader.read_tensor(name), tensor)
            assert reader.read_shape(name) == tuple(tensor.shape)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_an_index_that_is_none_is_named(tmp_path: Path, text: str) -> None:
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
def test_numbers_that_are_no_weights_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(16, dtype=torch.uint8).view(dtype)}, tmp_path / SINGLE)
    with ShardReader(tmp_path) as reader, pytest.raises(RecipeError, match=f"is {dtype}"):
        reader.read_tensor("a")


HEADER = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


@pytest.mark.parametrize(
    "header",
    [
        *("", "{", "[]", '{"a": NaN}', '{"a":' * 200_000, '{"\\ud800": 1}'),
        *(
            json.dumps({"a": HEADER["a"] | {"shape": s}})
            for s in ([3], [-2], [2.0], [2**63, 2])
        ),
        *(json.dumps({"a": HEADER["a"] | {"data_offsets": o}}) for o in ([0, 4], [8, 16])),
        json.dumps({"a": HEADER["a"] | {"dtype": "F64"}}),
        json.dumps(HEADER | {"b": HEADER["a"]}),
        json.dumps(HEADER | {"__metadata__": {"a": [1]}}),
    ],
)
def test_a_header_that_lies_is_refused(header: str, tmp_path: Path) -> None:
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
def test_an_index_names_files_of_the_folder_alone(file: object, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(RecipeError), ShardReader(tmp_path) as reader:
        reader.read_shape("a")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(RecipeError, match=r"'\.\./x\.safetensors' is not in this folder"):
        ShardReader(tmp_path)


@pytest.mark.parametrize("target", [None, "/dev/zero", "gone"])
def test_a_shard_that_is_no_file_is_not_waited_for(target: str | None, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "x"}}))
    if target is None:
        os.mkfifo(tmp_path / "x")
    else:
        (tmp_path / "x").symlink_to(target)
    with ShardReader(tmp_path) as reader, pytest.raises(RecipeError, match="/x: "):
        reader.read_tensor("a")
