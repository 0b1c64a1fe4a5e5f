"""Files of a checkpoint that somebody else wrote are checked before a tensor is filled."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from components.checkpoint.layout import PieceReader, read_pieces
from components.checkpoint.metadata import DamagedCheckpointError
from components.convert.reading import read_alone
from components.errors import RecipeError

WHOLE = torch.arange(24.0).reshape(4, 6)
Pieces = dict[str, tuple[Tensor, Any]]
QUARTERS: Pieces = {
    "w": (WHOLE[:2, :3], [0, 0]),
    "w@0,3": (WHOLE[:2, 3:], [0, 3]),
    "w@2,0": (WHOLE[2:, :3], [2, 0]),
    "w@2,3": (WHOLE[2:, 3:], [2, 3]),
}


def write(folder: Path, pieces: Pieces, name: str = "a.safetensors") -> PieceReader:
    offsets = {key: {"saved_offsets": places} for key, (_, places) in pieces.items()}
    tensors = {key: tensor.contiguous() for key, (tensor, _) in pieces.items()}
    save_file(tensors, folder / name, {"DCP_SHARDING_INFO": json.dumps(offsets)})
    return PieceReader(folder, read_pieces(folder, [name]))


def test_pieces_that_tile_a_tensor_make_it_up(tmp_path: Path) -> None:
    target = torch.zeros(4, 6)
    read_alone({"w": target}, write(tmp_path, QUARTERS))
    assert torch.equal(target, WHOLE)


@pytest.mark.parametrize("offset", ["a", ["a", "b"], [None, 0], [0.0, 0], [True, 0], 3, None])
def test_offsets_that_are_not_integers_are_damage(offset: object, tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpointError, match=r"is not a safetensors file of a check"):
        write(tmp_path, {"w": (WHOLE, offset)})


@pytest.mark.parametrize(
    "pieces",
    [
        *({"w": (WHOLE, offset)} for offset in ([-1, 0], [1, 0], [2**70, 0])),
        *({"w": (WHOLE, offset)} for offset in ([0], [0, 0, 0], [])),
        {"w": (WHOLE.reshape(4, 6, *[1] * 60), [0] * 62)},
        QUARTERS | {"w@2,3": (WHOLE[2:, 3:], [2, 4])},  # a gap
        QUARTERS | {"w@2,3": (WHOLE[2:, 3:], [1, 3])},  # a gap as large as what overlaps
        QUARTERS | {"w@0,0": (WHOLE[:2, :3], [0, 0])},  # twice
        QUARTERS | {"w@2,3": (WHOLE[2:, 3:].int(), [2, 3])},
        QUARTERS | {"w@2,3": (WHOLE[2:, 3:].flatten(), [2])},
        {"w": (torch.tensor(1.0), []), "w@": (torch.tensor(2.0), [])},
    ],
)
def test_pieces_that_do_not_tile_a_tensor_are_damage(pieces: Pieces, tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpointError, match=r"pieces of 'w' do not form a complete"):
        write(tmp_path, pieces)


@pytest.mark.parametrize("dtype", [torch.uint32, torch.complex64, torch.float8_e4m3fn])
def test_unknown_dtypes_are_damage(dtype: torch.dtype, tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpointError, match=r"is not a safetensors file of a check"):
        write(tmp_path, {"w": (WHOLE.to(dtype), [0, 0])})


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        ({"other\n": (WHOLE, [0, 0])}, r"w \(4, 6\) is missing"),
        ({"w": (WHOLE.T, [0, 0])}, r"w is \(6, 4\) there, \(4, 6\)"),
        ({"w": (WHOLE.int(), [0, 0])}, r"torch\.int32 there, torch\.float32 in"),
    ],
)
def test_a_tensor_of_another_kind_is_not_filled(held: Pieces, problem: str, tmp_path) -> None:
    target = torch.zeros(4, 6)
    with pytest.raises(RecipeError, match=problem):
        read_alone({"w": target}, write(tmp_path, held))
    assert not target.any()


@pytest.mark.parametrize("method", ["prepare_global_plan", "read_data"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(5, "lost")])
def test_errors_of_a_reader_are_not_wrapped(method, failure, tmp_path, monkeypatch):
    """Torch wraps it in an error of its own, a signal too."""

    def fail(*_: object) -> None:
        raise failure

    reader = write(tmp_path, QUARTERS)
    monkeypatch.setattr(reader, method, fail)
    with pytest.raises(type(failure)) as caught:
        read_alone({"w": torch.zeros(4, 6)}, reader)
    assert caught.value is failure
