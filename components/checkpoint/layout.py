"""Files of a checkpoint: who writes what where, and reading it back, whatever layout wrote it.

Torch plans which rank has each piece, we place it in a file. Neighbouring ranks share one, so
that the number of files is bounded and every node writes its own. A file is plain safetensors.
Of a tensor that several ranks hold parts of, a file may have several pieces: the piece at the
origin goes by the tensor's name, another one has its offsets behind it, ``name@128,0``.
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

from components.checkpoint.metadata import damaged
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
_HEADER_ALIGNMENT = 8  # bytes, so that float64 numbers can be mapped where they lie
_MARK = "@"
_NOT_AS_WRITTEN = (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True)
class Share:
    """What one rank writes: pieces at places of one file, maybe that file's header before.

    ``checkpoint_bytes`` and ``checkpoint_files`` count what all ranks write.
    """

    file: str
    header: bytes
    pieces: tuple[tuple[int, stored.MetadataIndex], ...]
    checkpoint_bytes: int
    checkpoint_files: int

    def blocks(self, tensors: Sequence[Tensor]) -> list[tuple[int, memoryview]]:
        """See header and tensors as bytes, each with its place, in the order of places."""
        blocks = [(0, memoryview(self.header))] if self.header else []
        for (begin, _), tensor in zip(self.pieces, tensors, strict=True):
            flat = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
            blocks.append((begin, flat.numpy().data))
        return blocks


class CheckpointLayout:
    """Each rank's share of a checkpoint of such tensors; planned once, by all ranks."""

    def __init__(self, tensors: Mapping[str, Tensor], *, files: int, group: NodeTree) -> None:
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(tensors), is_coordinator=group.rank == 0)
        plans = group.gather(planner.create_local_plan())
        shares: list[Share] | None = None
        if plans is not None:  # on the first rank
            whole, _ = planner.create_global_plan(plans)
            shares = _deal([plan.items for plan in whole], files)
        self.share = group.scatter(shares)

    def pick(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Take this rank's pieces, in the order of the share; nothing is copied."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(tensors), is_coordinator=False)
        return [planner.lookup_object(index) for _, index in self.share.pieces]


def _deal(plans: Sequence[Sequence[planned.WriteItem]], files: int) -> list[Share]:
    """Place what each rank writes, ``plans``, in at most so many files."""
    ranks, most = len(plans), min(files, len(plans))
    pieces: list[list[tuple[int, stored.MetadataIndex]]] = [[] for _ in plans]
    headers, names = [b""] * ranks, [""] * ranks
    total, used = 0, 0
    for number, members in groupby(range(ranks), key=lambda rank: rank * most // ranks):
        owned = [(rank, item) for rank in members for item in plans[rank]]
        # Wide numbers first: each lies at a multiple of its width then.
        owned.sort(key=lambda pair: -_data(pair[1]).properties.dtype.itemsize)
        if not owned:
            continue
        header, begins, end = _header([item for _, item in owned])
        headers[min(rank for rank, _ in owned)] = header
        for (rank, item), begin in zip(owned, begins, strict=True):
            names[rank] = f"shard-{number + 1:05d}-of-{most:05d}.safetensors"
            pieces[rank].append((begin, item.index))
        total, used = total + end, used + 1
    return [
        Share(name, header, tuple(placed), total, used)
        for name, header, placed in zip(names, headers, pieces, strict=True)
    ]


def _header(items: Sequence[planned.WriteItem]) -> tuple[bytes, list[int], int]:
    """Return a file's header, where in the file each item begins, and where the file ends."""
    entries, offsets, begins, end = {}, {}, [], 0
    for item in items:
        data, name = _data(item), item.index.fqn
        begins.append(end)
        end += prod(data.chunk.sizes) * data.properties.dtype.itemsize
        at = ",".join(map(str, data.chunk.offsets))
        # Two pieces of one tensor must not be called the same.
        key = f"{name}{_MARK}{at}" if any(data.chunk.offsets) else name
        entries[key] = {
            "dtype": _DTYPES[data.properties.dtype],
            "shape": list(data.chunk.sizes),
            "data_offsets": [begins[-1], end],
        }
        offsets[key] = {"saved_offsets": list(data.chunk.offsets)}
    # As torch's own writer has it: it reads what no two ranks share a file of.
    notes = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    text = json.dumps({"__metadata__": notes, **entries}).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return header, [len(header) + begin for begin in begins], len(header) + end


def _data(item: planned.WriteItem) -> planned.TensorWriteData:
    assert item.tensor_data is not None, "checkpoints hold tensors only"
    return item.tensor_data


class TensorPiece(NamedTuple):
    """A part of a tensor, or all of it, as a file has it."""

    name: str
    file: str
    key: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype


def read_pieces(checkpoint: Path, files: Iterable[str]) -> list[TensorPiece]:
    """List what is in some of the files, of which nothing is ever run.

    Raises:
        DamagedCheckpointError: one is no safetensors file of a checkpoint.
    """
    pieces = []
    for name in files:
        try:
            with safe_open(checkpoint / name, "pt") as file:
                offsets = json.loads(file.metadata()["DCP_SHARDING_INFO"])
                for key in file.keys():  # noqa: SIM118  # it is no dictionary
                    part = file.get_slice(key)
                    begin = tuple(offsets[key]["saved_offsets"])
                    whole, _, _ = key.partition(_MARK)
                    shape, dtype = tuple(part.get_shape()), _BY_NAME[part.get_dtype()]
                    if any(type(offset) is not int for offset in begin):
                        raise TypeError(f"the offsets of {key!r} are no whole numbers")
                    pieces.append(TensorPiece(whole, name, key, begin, shape, dtype))
        except _NOT_AS_WRITTEN as error:
            problem = f"is no safetensors file of a checkpoint: {error}"
            raise damaged(checkpoint / name, problem) from error
    return pieces


def _join(parts: Sequence[TensorPiece]) -> torch.Size | None:
    """Return the size of the tensor that the parts tile exactly, or None if there is none.

    Boxes tile a box exactly when their corners, with signs, add up to its corners.
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
    """Make the error of a checkpoint that does not fit what is to be filled."""
    problem = f"is of another model or optimizer: {difference}"
    remedy = "resume with the recipe that wrote it"
    others = "action=export and model.init_from take weights alone"
    return RecipeError(str(checkpoint), problem, f"{remedy}; {others}")


class PieceReader(FileSystemReader):
    """Serve torch's loading from pieces that were listed before, by all ranks in shares."""

    def __init__(self, checkpoint: Path, pieces: Sequence[TensorPiece]) -> None:
        """Take what `read_pieces` listed.

        Raises:
            DamagedCheckpointError: pieces of a tensor overlap, leave a gap or differ in dtype.
        """
        super().__init__(checkpoint)
        self._folder = checkpoint
        self._pieces: dict[stored.MetadataIndex, TensorPiece] = {}
        self.entries: dict[str, stored.TensorStorageMetadata] = {}
        by_name = attrgetter("name")
        for name, group in groupby(sorted(pieces, key=by_name), by_name):
            parts = list(group)
            if len({part.dtype for part in parts}) > 1 or (size := _join(parts)) is None:
                problem = f"the pieces of {name!r} do not make up a tensor"
                raise damaged(checkpoint / parts[0].file, problem)
            properties = stored.TensorProperties(parts[0].dtype)
            self.entries[name] = entry = stored.TensorStorageMetadata(properties, size, [])
            for part in parts:
                offsets, shape = torch.Size(part.offsets), torch.Size(part.shape)
                self._pieces[stored.MetadataIndex(name, offsets)] = part
                entry.chunks.append(stored.ChunkStorageMetadata(offsets, shape))

    def check_tensors(self, expected: Mapping[str, Tensor]) -> None:
        """Compare names, shapes and kinds of numbers with the tensors to fill.

        Raises:
            RecipeError: the checkpoint is of another model or optimizer.
        """
        for name, tensor in sorted(expected.items()):
            shape = tuple(tensor.shape)
            if (entry := self.entries.get(name)) is None:
                raise of_another_model(self._folder, f"it lacks {name} {shape}")
            size, dtype = tuple(entry.size), entry.properties.dtype
            if size != shape or dtype.is_floating_point != tensor.is_floating_point():
                there, here = (size, shape) if size != shape else (dtype, tensor.dtype)
                difference = f"{name} is {there} there, {here} here"
                raise of_another_model(self._folder, difference)

    def read_metadata(self, *args: object, **kwargs: object) -> stored.Metadata:
        return stored.Metadata(dict(self.entries), storage_data=self._pieces)

    def read_data(self, plan: planned.LoadPlan, planner: planned.LoadPlanner) -> Future[None]:
        """Copy what this rank needs, a file at a time, into the tensors to fill."""
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
