"""Average several checkpoints of a run, tensor by tensor.

The mean of the last checkpoints is LAWA (arXiv 2209.14981). Coefficients that decrease with a
checkpoint's age emulate a learning rate decay (WSM, arXiv 2507.17634): with coefficient c_j of
checkpoint j, the update that led to checkpoint i has the weight w_i, the sum of c_j for j from
i on. This is exact for the updates made; a run with decay would have made other updates.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from components.build import build_node
from components.checkpoint.choice import check_alone
from components.checkpoint.layout import PieceReader, read_pieces
from components.checkpoint.metadata import (
    EITHER,
    Files,
    FileSection,
    Marker,
    complete_checkpoints,
    tokens_of,
)
from components.checkpoint.saving import WEIGHTS, master_of
from components.config.schema.children import Average
from components.convert.hf_shards import group_by_bytes, save_file
from components.convert.reading import read_alone
from components.distributed.weight_shards import rows_of
from components.errors import RecipeError
from components.optim.schedules import compute_remaining_decay

SHARD_BYTES = 1 << 30  # maximum of one file, unless a tensor is larger


@dataclass(frozen=True)
class MergedCheckpoint:
    """A checkpoint to average, with its coefficient."""

    checkpoint: Path
    marker: Marker
    coefficient: float


def compute_coefficients(average: Average, count: int, ema_decay: float | None) -> list[float]:
    """Return the coefficients of ``count`` checkpoints, oldest first. Their sum is 1.

    A decay shape starts at the oldest checkpoint: update i of count - 1 has the shape's value
    at i / count as its weight, so that ``linear`` is uniform, as in Megatron-LM's
    ``weighted_merge``. ``ema`` is a mean that starts with the oldest checkpoint and keeps
    ``ema_decay`` of itself at each later one.
    """
    if average == "uniform":
        return [1.0 / count] * count
    if average == "ema":
        assert ema_decay is not None, "the command asks for it"
        update = [ema_decay ** (count - 1 - place) for place in range(count)]
        return [update[0], *((1.0 - ema_decay) * value for value in update[1:])]
    weights = [compute_remaining_decay(average, place / count) for place in range(count)]
    return [before - after for before, after in pairwise([*weights, 0.0])]


def last_checkpoints(folder: Path, count: int, tokens: int | None) -> list[Path]:
    """Return the last ``count`` kept checkpoints up to ``tokens``, oldest first.

    Full checkpoints are preferred to weights alone, as their weights may be finer.
    """
    by_tokens = {tokens_of(path): path for path in complete_checkpoints(folder, EITHER[::-1])}
    early = sorted(number for number in by_tokens if tokens is None or number <= tokens)
    if len(early) < count:
        existing = ", ".join(f"{number:_}" for number in early) or "none"
        problem = f"{count} checkpoints requested, but only {len(early)} exist"
        remedy = f"saved: {existing}; checkpoint.weights_every_tokens keeps weights permanently"
        raise RecipeError("last", problem, remedy)
    return [by_tokens[number] for number in early[-count:]]


def check_whole(
    checkpoints: Sequence[Path], parts: Sequence[float], fingerprint: str
) -> list[MergedCheckpoint]:
    """Check every byte against the markers, and the markers against the recipe."""
    merged = []
    for checkpoint, part in zip(checkpoints, parts, strict=True):
        marker = check_alone(checkpoint)
        if marker.fingerprint != fingerprint:
            problem = f"has the recipe fingerprint {marker.fingerprint}, this run {fingerprint}"
            raise RecipeError(str(checkpoint), problem, "merge checkpoints of one run")
        merged.append(MergedCheckpoint(checkpoint, marker, part))
    return merged


def buffers_of(section: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the buffers of a recipe's model."""
    with torch.device("meta"):
        model: nn.Module = build_node(section, "model")
    return frozenset(name for name, _ in model.named_buffers())


def average_into(
    target: Path, merged: Sequence[MergedCheckpoint], *, buffers: Collection[str]
) -> Files:
    """Write the average to the new folder ``target`` and return its files.

    Memory holds at most one file's tensors plus two more. ``buffers`` and integer tensors are
    copied from the newest checkpoint: a router's balancing bias, for example, is not a weight.

    Raises:
        RecipeError: the checkpoints are not of one model.
        OSError: the file system is read-only, full or unavailable.
    """
    readers = [_Weights(checkpoint) for checkpoint in merged]
    newest = readers[-1]
    for reader in readers[:-1]:
        if reader.shapes != newest.shapes:
            problem = "has different weights from the newest checkpoint"
            raise RecipeError(str(reader.checkpoint), problem, "merge checkpoints of one model")
    parts = [checkpoint.coefficient for checkpoint in merged]
    target.mkdir(parents=True)
    files: dict[str, tuple[FileSection, ...]] = {}
    groups = list(
        group_by_bytes(newest.shapes, lambda name: 4 * prod(newest.shapes[name]), SHARD_BYTES)
    )
    for number, names in enumerate(groups, start=1):
        tensors = {
            f"{WEIGHTS}{name}": newest.read_tensor(name)
            if name in buffers or not newest.is_fraction(name)
            else _mean(name, readers, parts)
            for name in names
        }
        file = target / f"shard-{number:05d}-of-{len(groups):05d}.safetensors"
        files[file.name] = (_write(file, tensors),)
    return files


class _Weights:
    """Weights of a checkpoint of any layout; master weights where it has them."""

    def __init__(self, merged: MergedCheckpoint) -> None:
        self.checkpoint = merged.checkpoint
        self._reader = PieceReader(
            merged.checkpoint, read_pieces(merged.checkpoint, merged.marker.files)
        )
        self._entries = self._reader.entries
        self.shapes = {
            name.removeprefix(WEIGHTS): tuple(entry.size)
            for name, entry in sorted(self._entries.items())
            if name.startswith(WEIGHTS)
        }

    def is_fraction(self, name: str) -> bool:
        return self._entries[f"{WEIGHTS}{name}"].properties.dtype.is_floating_point

    def read_tensor(self, name: str) -> Tensor:
        """Read a whole tensor in its stored dtype, or its master in the master's dtype."""
        master = master_of(name)
        key = master if master in self._entries else f"{WEIGHTS}{name}"
        whole = torch.empty(self.shapes[name], dtype=self._entries[key].properties.dtype)
        read_alone({key: rows_of(whole) if key == master else whole}, self._reader)
        return whole


def _mean(name: str, readers: Sequence[_Weights], parts: Sequence[float]) -> Tensor:
    """Return the mean in float32 or finer, oldest first. Equal tensors stay unchanged."""
    mean, total = None, 0.0
    for reader, part in zip(readers, parts, strict=True):
        if part == 0.0:
            continue
        value = reader.read_tensor(name)
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        total += part
        mean = value if mean is None else mean.add_(value.sub_(mean), alpha=part / total)
    assert mean is not None, "the parts' sum is 1"
    return mean


def _write(file: Path, tensors: dict[str, Tensor]) -> FileSection:
    """Write whole tensors in the format of `components.checkpoint.layout` and sync them."""
    offsets = {name: {"saved_offsets": [0] * tensor.dim()} for name, tensor in tensors.items()}
    notes = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    save_file(tensors, file, notes)
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        return FileSection(file.stat().st_size, file_digest(stream, "sha256").hexdigest())
