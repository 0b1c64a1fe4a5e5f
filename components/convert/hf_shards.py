"""Safetensors in the Hugging Face layout: shards of bounded size and an index, read lazily."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from stat import S_IMODE
from typing import Any, TypeVar, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file as save_privately
from torch import Tensor

from components.convert.param_mapping import check_values
from components.data.files import check_regular
from components.errors import RecipeError
from components.json_file import read_mapping

MAX_SHARD_BYTES = 5_000_000_000  # limit of the hub; a larger tensor has its own shard
SINGLE = "model.safetensors"
FETCH = "fetch the folder again"
INDEX = "model.safetensors.index.json"
T = TypeVar("T")


def save_file(tensors: dict[str, Tensor], file: Path, notes: dict[str, str]) -> None:
    """Write safetensors with the default file mode: the library makes files private."""
    file.touch()
    mode = file.stat().st_mode
    save_privately(tensors, file, metadata=notes)
    file.chmod(S_IMODE(mode))


def group_by_bytes(
    items: Iterable[T], count_bytes: Callable[[T], int], max_bytes: int
) -> Iterator[list[T]]:
    """Group items in order. A group exceeds ``max_bytes`` only if it is one larger item."""
    group, group_bytes = list[T](), 0
    for item in items:
        if group and group_bytes + count_bytes(item) > max_bytes:
            yield group
            group, group_bytes = [], 0
        group.append(item)
        group_bytes += count_bytes(item)
    yield group


def write_shards(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], *, max_bytes: int = MAX_SHARD_BYTES
) -> int:
    """Write tensors in order, one shard in memory at a time, and return the total bytes."""
    shards: list[list[str]] = []  # tensor names of each shard
    total_bytes = 0
    for shard in group_by_bytes(tensors, lambda named: named[1].nbytes, max_bytes):
        contents = {name: _own_memory(tensor.detach()) for name, tensor in shard}
        save_file(contents, folder / f"shard-{len(shards)}", {"format": "pt"})
        shards.append(list(contents))
        total_bytes += sum(tensor.nbytes for tensor in contents.values())
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / SINGLE)
        return total_bytes
    places: dict[str, str] = {}
    for number, names in enumerate(shards):  # final file names contain the number of shards
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"shard-{number}").rename(folder / file)
        places |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    return total_bytes


def _own_memory(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor with its own storage, as the format requires."""
    tensor = tensor.contiguous()
    is_view = tensor.untyped_storage().nbytes() != tensor.nbytes
    return tensor.clone() if is_view else tensor


class ShardReader(ExitStack):
    """Lazy reader of a folder's tensors by name. Failures are RecipeErrors."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._places = _places(folder) or dict.fromkeys(self._file(SINGLE).keys(), SINGLE)

    def list_tensors(self) -> list[str]:
        return list(self._places)

    def list_files(self) -> list[str]:
        return sorted({*self._places.values()})

    def read_tensor(self, name: str) -> Tensor:
        with self._explained(name) as file:
            tensor = cast("Tensor", file.get_tensor(name))
        return check_values(tensor, f"{self._folder / self._places[name]}: {name!r}")

    def read_shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape from the file header only."""
        with self._explained(name) as file:
            return tuple(file.get_slice(name).get_shape())

    @contextmanager
    def _explained(self, name: str) -> Iterator[Any]:
        """Open a tensor's file. Turn library errors into a RecipeError that names both."""
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
    """Return the file of each tensor; empty if one file contains all tensors."""
    index = folder / INDEX
    if (folder / SINGLE).is_file():
        return {}
    if not index.is_file():
        remedy = "use a folder of safetensors (pickled weights, *.bin, are never read)"
        raise RecipeError(str(folder), f"has neither {SINGLE} nor {INDEX}", remedy)
    try:
        places: dict[str, str] = {**read_mapping(index, remedy=FETCH)["weight_map"]}
    except (KeyError, TypeError) as error:
        raise RecipeError(str(index), f"is not an index of tensors: {error!r}", FETCH) from None
    for file in places.values():
        if Path(str(file)).name != file:
            raise RecipeError(
                str(index), f"{file!r} is not in this folder", "correct the index"
            )
    return places
