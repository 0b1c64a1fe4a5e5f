"""Reading pieces out of a checkpoint's files, whatever layout wrote them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from components.checkpoint.layout import DTYPES, MARK
from components.checkpoint.metadata import damaged

# What follows from a head that is not as it was written.
BAD_HEAD = (OSError, KeyError, TypeError, ValueError, RecursionError)


class TensorPiece(NamedTuple):
    """A part of a tensor, or all of it, as a file has it."""

    name: str
    file: str
    key: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str


def read_pieces(checkpoint: Path, files: Iterable[str]) -> list[TensorPiece]:
    """List what is in some of the files.

    Raises:
        DamagedCheckpointError: one is no safetensors file; nothing in it is ever run.
    """
    pieces = []
    for name in files:
        try:
            with safe_open(checkpoint / name, "pt") as file:
                offsets = json.loads(file.metadata()["DCP_SHARDING_INFO"])
                for key in file.keys():  # noqa: SIM118  # it is no dictionary
                    part = file.get_slice(key)
                    begin = tuple(offsets[key]["saved_offsets"])
                    whole, _, _ = key.partition(MARK)
                    shape, dtype = tuple(part.get_shape()), part.get_dtype()
                    pieces.append(TensorPiece(whole, name, key, begin, shape, dtype))
        except (SafetensorError, *BAD_HEAD) as error:
            problem = f"is no safetensors file of a checkpoint: {error}"
            raise damaged(checkpoint / name, problem) from error
    return pieces


class PieceReader(FileSystemReader):
    """Serve torch's loading from pieces that were listed before, by all ranks in shares."""

    def __init__(self, checkpoint: Path, pieces: Sequence[TensorPiece]) -> None:
        super().__init__(checkpoint)
        self._folder = checkpoint
        self._pieces = {MetadataIndex(one.name, torch.Size(one.offsets)): one for one in pieces}
        self.entries: dict[str, TensorStorageMetadata] = {}
        dtypes = {name: dtype for dtype, name in DTYPES.items()}
        for one in pieces:
            entry = self.entries.setdefault(
                one.name,
                TensorStorageMetadata(
                    TensorProperties(dtypes[one.dtype]), torch.Size([0] * len(one.shape)), []
                ),
            )
            entry.chunks.append(
                ChunkStorageMetadata(torch.Size(one.offsets), torch.Size(one.shape))
            )
            ends = map(sum, zip(one.offsets, one.shape, strict=True))
            entry.size = torch.Size(map(max, entry.size, ends))

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """Tell torch what there is; the signature is torch's."""
        return Metadata(dict(self.entries), storage_data=self._pieces)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy what this rank needs, a file at a time, into the tensors to fill."""
        per_file: dict[str, list[ReadItem]] = {}
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
