"""Safetensors in the layout of the hub: shards of bounded size and an index, read lazily."""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from stat import S_IMODE
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file as save_privately
from torch import Tensor

from components.convert.param_mapping import check_values
from components.data.files import check_regular
from components.errors import RecipeError
from components.json_file import read_mapping

MAX_SHARD_BYTES = 5_000_000_000  # the hub's own limit; one tensor above it has a shard alone
SINGLE = "model.safetensors"
FETCH = "fetch the folder again"
INDEX = "model.safetensors.index.json"


def save_file(tensors: dict[str, Tensor], file: Path, notes: dict[str, str]) -> None:
    """Write safetensors with the mode of any new file: the library leaves it to its owner."""
    file.touch()
    mode = file.stat().st_mode
    save_privately(tensors, file, metadata=notes)
    file.chmod(S_IMODE(mode))


def write_shards(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], *, max_bytes: int = MAX_SHARD_BYTES
) -> int:
    """Write tensors as they come, one shard in memory at a time, and return their bytes."""
    shards: list[list[str]] = []  # the names of the tensors in each
    pending: dict[str, Tensor] = {}
    pending_bytes = total_bytes = 0

    def write() -> None:
        save_file(pending, folder / f"shard-{len(shards)}", {"format": "pt"})
        shards.append(list(pending))

    for name, tensor in tensors:
        if pending and pending_bytes + tensor.nbytes > max_bytes:
            write()
            pending, pending_bytes = {}, 0
        tensor = tensor.detach().contiguous()  # the format holds whole ones: views are copied
        is_view = tensor.untyped_storage().nbytes() != tensor.nbytes
        pending[name] = tensor.clone() if is_view else tensor
        pending_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
    write()
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / SINGLE)
        return total_bytes
    places: dict[str, str] = {}
    for number, names in enumerate(shards):  # their files' names hold their count
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"shard-{number}").rename(folder / file)
        places |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    return total_bytes


class ShardReader(ExitStack):
    """Tensors of a folder by name, each read when asked for, or a RecipeError if that fails."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._places = _places(folder) or dict.fromkeys(self._file(SINGLE).keys(), SINGLE)

    def names(self) -> list[str]:
        return list(self._places)

    def files(self) -> list[str]:
        return sorted({*self._places.values()})

    def read(self, name: str) -> Tensor:
        with self._explained(name) as file:
            tensor = cast("Tensor", file.get_tensor(name))
        return check_values(tensor, f"{self._folder / self._places[name]}: {name!r}")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape from the file's header alone."""
        with self._explained(name) as file:
            return tuple(file.get_slice(name).get_shape())

    @contextmanager
    def _explained(self, name: str) -> Iterator[Any]:
        """Open the file of a tensor; what the library raises names the file and the tensor."""
        path = self._folder / self._places[name]
        try:
            yield self._file(self._places[name])
        except (OSError, SafetensorError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, RecipeError):
                raise
            problem = f"the tensor {name!r} cannot be read: {error}"
            raise RecipeError(str(path), problem, FETCH) from None

    def _file(self, name: str) -> Any:
        if name not in self._files:
            path = self._folder / name
            check_regular(path, str(path))
            try:
                opened = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise RecipeError(str(path), f"cannot be read: {error}", FETCH) from None
            self._files[name] = self.enter_context(opened)
        return self._files[name]


def _places(folder: Path) -> dict[str, str]:
    """Return the file of each tensor; empty if there is one file for all."""
    index = folder / INDEX
    if (folder / SINGLE).is_file():
        return {}
    if not index.is_file():
        remedy = "name a folder of safetensors; pickled weights (*.bin) are never read"
        raise RecipeError(str(folder), f"there is neither {SINGLE} nor {INDEX}", remedy)
    try:
        places: dict[str, str] = {**read_mapping(index, remedy=FETCH)["weight_map"]}
    except (KeyError, TypeError) as error:
        raise RecipeError(str(index), f"is no index of tensors: {error!r}", FETCH) from None
    for file in places.values():
        if Path(str(file)).name != file:
            raise RecipeError(str(index), f"{file!r} is no file of this folder", "mend it")
    return places
