"""Checkpoint layout: the pieces and files that each rank writes, and reading in any layout.

Torch plans which rank writes each piece. This module assigns each piece to a file. Neighboring
ranks share a file: the number of files is bounded, and every node writes its own files. Each
file is plain safetensors and may have several pieces of a sharded tensor. The piece at the
origin has the tensor's name, the others append their offsets: ``name@128,0``.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint import metadata as stored
from torch.distributed.checkpoint import planner as planned
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.futures import Future

from components.checkpoint.metadata import make_damage_error
from components.distributed.node_tree import NodeTree
from components.errors import RecipeError

# https://github.com/huggingface/safetensors#format
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}
_MOST_DIMENSIONS = 8
_HEADER_ALIGNMENT = 8  # bytes, so that float64 tensors can be memory-mapped
_MARK = "@"
_NOT_AS_WRITTEN = (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True)
class RankWritePlan:
    """One rank's share: pieces and their positions in one file, and the header or ``b""``.

    ``checkpoint_bytes`` and ``checkpoint_files`` are totals over all ranks.
    """

    file: str
    header: bytes
    pieces: tuple[tuple[int, stored.MetadataIndex], ...]
    checkpoint_bytes: int
    checkpoint_files: int

    def list_blocks(self, tensors: Sequence[Tensor]) -> list[tuple[int, memoryview]]:
        """Return the header and the tensors as bytes with their positions, in file order."""
        blocks = [(0, memoryview(self.header))] if self.header else []
        for (begin, _), tensor in zip(self.pieces, tensors, strict=True):
            flat = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
            blocks.append((begin, flat.numpy().data))
        return blocks


class CheckpointLayout:
    """Layout of a checkpoint: each rank's share of the tensors. All ranks plan it once."""

    def __init__(self, tensors: Mapping[str, Tensor], *, files: int, group: NodeTree) -> None:
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(tensors), is_coordinator=group.global_rank == 0)
        plans = group.gather_objects(planner.create_local_plan())
        shares: list[RankWritePlan] | None = None
        if plans is not None:  # on the first rank
            whole, _ = planner.create_global_plan(plans)
            shares = _deal([plan.items for plan in whole], files)
        self.share = group.scatter_objects(shares)

    def select_pieces(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Return this rank's pieces in the order of its share, without a copy."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(tensors), is_coordinator=False)
        return [planner.lookup_object(index) for _, index in self.share.pieces]


def _deal(plans: Sequence[Sequence[planned.WriteItem]], files: int) -> list[RankWritePlan]:
    """Assign the items of each rank's plan to at most ``files`` files."""
    ranks, num_files = len(plans), min(files, len(plans))
    pieces: list[list[tuple[int, stored.MetadataIndex]]] = [[] for _ in plans]
    headers, names = [b""] * ranks, [""] * ranks
    total, used = 0, 0
    for number, members in groupby(range(ranks), key=lambda rank: rank * num_files // ranks):
        owned = [(rank, item) for rank in members for item in plans[rank]]
        # Wide dtypes first: then each tensor is aligned to its item size.
        owned.sort(key=lambda pair: -_data(pair[1]).properties.dtype.itemsize)
        if not owned:
            continue
        header, begins, end = _header([item for _, item in owned])
        headers[min(rank for rank, _ in owned)] = header
        for (rank, item), begin in zip(owned, begins, strict=True):
            names[rank] = f"shard-{number + 1:05d}-of-{num_files:05d}.safetensors"
            pieces[rank].append((begin, item.index))
        total, used = total + end, used + 1
    return [
        RankWritePlan(name, header, tuple(placed), total, used)
        for name, header, placed in zip(names, headers, pieces, strict=True)
    ]


def _header(items: Sequence[planned.WriteItem]) -> tuple[bytes, list[int], int]:
    """Return a file's header, the start of each item in the file, and the file's size."""
    entries, offsets, begins, end = {}, {}, [], 0
    for item in items:
        data, name = _data(item), item.index.fqn
        begins.append(end)
        end += prod(data.chunk.sizes) * data.properties.dtype.itemsize
        at = ",".join(map(str, data.chunk.offsets))
        # Two pieces of one tensor must have different keys.
        key = f"{name}{_MARK}{at}" if any(data.chunk.offsets) else name
        entries[key] = {
            "dtype": _DTYPES[data.properties.dtype],
            "shape": list(data.chunk.sizes),
            "data_offsets": [begins[-1], end],
        }
        offsets[key] = {"saved_offsets": list(data.chunk.offsets)}
    # The metadata of torch's own writer: torch can read the checkpoint if no ranks share files.
    notes = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    text = json.dumps({"__metadata__": notes, **entries}).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return header, [len(header) + begin for begin in begins], len(header) + end


def _data(item: planned.WriteItem) -> planned.TensorWriteData:
    assert item.tensor_data is not None, "checkpoints hold tensors only"
    return item.tensor_data


class TensorPiece(NamedTuple):
    """A piece of a tensor (or the whole tensor) in a file."""

    name: str
    file: str
    key: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype


def read_pieces(checkpoint: Path, files: Iterable[str]) -> list[TensorPiece]:
    """List the pieces in ``files``. Reading runs no code from them.

    Raises DamagedCheckpointError if a file is not a safetensors file of a checkpoint.
    """
    pieces = []
    for name in files:
        try:
            with safe_open(checkpoint / name, "pt") as file:
                offsets = json.loads(file.metadata()["DCP_SHARDING_INFO"])
                for key in file.keys():  # noqa: SIM118  # `file` is not a dict
                    part = file.get_slice(key)
                    begin = tuple(offsets[key]["saved_offsets"])
                    whole, _, _ = key.partition(_MARK)
                    shape, dtype = tuple(part.get_shape()), _BY_NAME[part.get_dtype()]
                    if any(type(offset) is not int for offset in begin):
                        raise TypeError(f"the offsets of {key!r} are not integers")
                    pieces.append(TensorPiece(whole, name, key, begin, shape, dtype))
        except _NOT_AS_WRITTEN as error:
            problem = f"is not a safetensors file of a checkpoint: {error}"
            raise make_damage_error(checkpoint / name, problem) from error
    return pieces


def _join(parts: Sequence[TensorPiece]) -> torch.Size | None:
    """Return the size of the tensor that the parts tile exactly, or None if they do not.

    Boxes tile a larger box exactly if their signed corners add up to its signed corners.
    """
    dimensions = {length for part in parts for length in (len(part.offsets), len(part.shape))}
    if len(dimensions) > 1 or max(dimensions) > _MOST_DIMENSIONS:
        return None
    ends = [tuple(map(sum, zip(part.offsets, part.shape, strict=True))) for part in parts]
    size = tuple(map(max, zip(*ends, strict=True)))
    corners: Counter[tuple[int, ...]] = Counter()
    boxes = [(part.offsets, end, 1) for part, end in zip(parts, ends, strict=True)]
    for begin, end, weight in [*boxes, ((0,) * len(size), size, -1)]:
        for far in product((False, True), repeat=len(size)):
            corner = (ends[is_far] for *ends, is_far in zip(begin, end, far, strict=True))
            corners[tuple(corner)] += weight * (-1) ** sum(far)
    return None if any(corners.values()) else torch.Size(size)


def of_another_model(checkpoint: Path, difference: str) -> RecipeError:
    """Return the error for a checkpoint that does not match the tensors to fill."""
    problem = f"does not match the recipe's model or optimizer: {difference}"
    remedy = "resume with the recipe that wrote the checkpoint"
    others = "for weights only, use action=export and model.init_from"
    return RecipeError(str(checkpoint), problem, f"{remedy}; {others}")


class PieceReader(FileSystemReader):
    """Storage reader for torch's ``load``, over pieces that the ranks listed in shares."""

    def __init__(self, checkpoint: Path, pieces: Sequence[TensorPiece]) -> None:
        """Index pieces; DamagedCheckpointError if they overlap, leave a gap, or mix dtypes."""
        super().__init__(checkpoint)
        self._folder = checkpoint
        self._pieces: dict[stored.MetadataIndex, TensorPiece] = {}
        self.entries: dict[str, stored.TensorStorageMetadata] = {}
        by_name = attrgetter("name")
        for name, group in groupby(sorted(pieces, key=by_name), by_name):
            parts = list(group)
            if len({part.dtype for part in parts}) > 1 or (size := _join(parts)) is None:
                problem = f"the pieces of {name!r} do not form a complete tensor"
                raise make_damage_error(checkpoint / parts[0].file, problem)
            properties = stored.TensorProperties(parts[0].dtype)
            self.entries[name] = entry = stored.TensorStorageMetadata(properties, size, [])
            for part in parts:
                offsets, shape = torch.Size(part.offsets), torch.Size(part.shape)
                self._pieces[stored.MetadataIndex(name, offsets)] = part
                entry.chunks.append(stored.ChunkStorageMetadata(offsets, shape))

    def check_tensors(self, expected: Mapping[str, Tensor]) -> None:
        """Raise RecipeError unless names, shapes and dtype kinds (float or not) match."""
        for name, tensor in sorted(expected.items()):
            shape = tuple(tensor.shape)
            if (entry := self.entries.get(name)) is None:
                raise of_another_model(self._folder, f"{name} {shape} is missing")
            size, dtype = tuple(entry.size), entry.properties.dtype
            if size != shape or dtype.is_floating_point != tensor.is_floating_point():
                there, here = (size, shape) if size != shape else (dtype, tensor.dtype)
                difference = f"{name} is {there} there, {here} in the recipe"
                raise of_another_model(self._folder, difference)

    def read_metadata(self, *args: object, **kwargs: object) -> stored.Metadata:
        return stored.Metadata(dict(self.entries), storage_data=self._pieces)

    def read_data(self, plan: planned.LoadPlan, planner: planned.LoadPlanner) -> Future[None]:
        """Copy the pieces that this rank needs into its tensors, one file at a time."""
        per_file: dict[str, list[planned.ReadItem]] = {}
        for item in plan.items:
            per_file.setdefault(self._pieces[item.storage_index].file, []).append(item)
        for name, items in per_file.items():
            with safe_open(self._folder / name, "pt") as file:
                for item in items:
                    part = file.get_slice(self._pieces[item.storage_index].key)
                    target = planner.resolve_tensor(item).detach()
                    spans = zip(item.storage_offsets, item.lengths, strict=True)
                    target.copy_(part[tuple(slice(at, at + length) for at, length in spans)])
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done
