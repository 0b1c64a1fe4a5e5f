"""Who writes what where: torch plans which rank has each piece, we place it in a file.

Neighbouring ranks share a file, so that the number of files is bounded and every node writes
its own. A file is plain safetensors. Of a tensor that several ranks hold parts of, a file may
have several pieces: the piece at the origin goes by the tensor's name, another one has its
offsets behind it, ``name@128,0``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem

# https://github.com/huggingface/safetensors#format
DTYPES = {
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
HEADER_ALIGNMENT = 8  # bytes, so that float64 numbers can be mapped where they lie
MARK = "@"


@dataclass(frozen=True)
class Share:
    """What one rank writes: pieces at places of one file, maybe that file's header before.

    ``checkpoint_bytes`` and ``checkpoint_files`` count what all ranks write.
    """

    file: str
    header: bytes
    pieces: tuple[tuple[int, MetadataIndex], ...]
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

    def __init__(
        self, tensors: Mapping[str, Tensor], *, files: int, group: dist.ProcessGroup
    ) -> None:
        first, is_first = dist.get_global_rank(group, 0), dist.get_rank(group) == 0
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(tensors), is_coordinator=is_first)
        plans = [SavePlan([])] * dist.get_world_size(group)
        mine = planner.create_local_plan()
        dist.gather_object(mine, plans if is_first else None, dst=first, group=group)
        shares: list[Share] | None = None
        if is_first:
            whole, _ = planner.create_global_plan(plans)
            shares = deal([plan.items for plan in whole], files)
        received: list[Share] = [None]  # type: ignore[list-item]  # until it is received
        dist.scatter_object_list(received, shares, src=first, group=group)
        (self.share,) = received

    def pick(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Take this rank's pieces, in the order of the share; nothing is copied."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(tensors), is_coordinator=False)
        return [planner.lookup_object(index) for _, index in self.share.pieces]


def deal(plans: Sequence[Sequence[WriteItem]], files: int) -> list[Share]:
    """Place what each rank writes, ``plans``, in at most so many files.

    Wide numbers come first in a file: each lies at a multiple of its width then.
    """
    ranks, most = len(plans), min(files, len(plans))
    pieces: list[list[tuple[int, MetadataIndex]]] = [[] for _ in plans]
    headers, names = [b""] * ranks, [""] * ranks
    total, used = 0, 0
    for number, members in groupby(range(ranks), key=lambda rank: rank * most // ranks):
        owned = [(rank, item) for rank in members for item in plans[rank]]
        owned.sort(key=lambda pair: -_data(pair[1]).properties.dtype.itemsize)
        if not owned:
            continue
        header, begins = _header([item for _, item in owned])
        headers[min(rank for rank, _ in owned)] = header
        for (rank, item), begin in zip(owned, begins, strict=True):
            names[rank] = f"shard-{number + 1:05d}-of-{most:05d}.safetensors"
            pieces[rank].append((begin, item.index))
        total += begins[-1] + _bytes(owned[-1][1])
        used += 1
    return [
        Share(name, header, tuple(placed), total, used)
        for name, header, placed in zip(names, headers, pieces, strict=True)
    ]


def _header(items: Sequence[WriteItem]) -> tuple[bytes, list[int]]:
    """Return a file's header and where in the file each item begins."""
    entries, offsets, places, end = {}, {}, [], 0
    for item in items:
        data, begin = _data(item), end
        end += _bytes(item)
        key = key_of(item.index.fqn, data.chunk.offsets)
        entries[key] = {
            "dtype": DTYPES[data.properties.dtype],
            "shape": list(data.chunk.sizes),
            "data_offsets": [begin, end],
        }
        offsets[key] = {"saved_offsets": list(data.chunk.offsets)}
        places.append(begin)
    # As torch's own writer has it: it reads what no two ranks share a file of.
    notes = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    text = json.dumps({"__metadata__": notes, **entries}).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return header, [len(header) + place for place in places]


def key_of(name: str, offsets: Sequence[int]) -> str:
    """Name a piece in a file: two of one tensor must not be called the same."""
    return f"{name}{MARK}{','.join(map(str, offsets))}" if any(offsets) else name


def _data(item: WriteItem) -> TensorWriteData:
    assert item.tensor_data is not None, "checkpoints hold tensors only"
    return item.tensor_data


def _bytes(item: WriteItem) -> int:
    data = _data(item)
    return prod(data.chunk.sizes) * data.properties.dtype.itemsize
