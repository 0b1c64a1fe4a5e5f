"""Several checkpoints of a run averaged into one, tensor by tensor.

The mean of the last ones is LAWA (arXiv 2209.14981). Weights that fall with a checkpoint's age
stand for a decay of the learning rate that was not run (WSM, arXiv 2507.17634): with c_j of
checkpoint j, the update that led to checkpoint i counts w_i, the sum of c_j over j >= i. It is
exact for the updates that were made; those of a run that decays would have been others.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from components.build import build
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
from components.convert.hf_shards import save_file
from components.convert.reading import read_alone
from components.distributed.weight_shards import rows_of
from components.errors import RecipeError
from components.optim.schedules import remaining

SHARD_BYTES = 1 << 30  # of one file, unless a tensor is larger


@dataclass(frozen=True)
class MergedCheckpoint:
    """A checkpoint that is averaged, and its part."""

    checkpoint: Path
    marker: Marker
    coefficient: float


def coefficients(average: Average, count: int, ema_decay: float | None) -> list[float]:
    """Give the parts of ``count`` checkpoints, the oldest first; their sum is 1.

    A shape decays from the oldest on, update i of count - 1 having what is left of it at
    i / count, so that linear is uniform: as Megatron-LM's ``weighted_merge`` has it. ``ema`` is
    a mean that begins with the oldest and keeps ``ema_decay`` of itself at each next one.
    """
    if average == "uniform":
        return [1.0 / count] * count
    if average == "ema":
        assert ema_decay is not None, "the command asks for it"
        update = [ema_decay ** (count - 1 - place) for place in range(count)]
        return [update[0], *((1.0 - ema_decay) * one for one in update[1:])]
    left = [remaining(average, place / count) for place in range(count)]
    return [before - after for before, after in pairwise([*left, 0.0])]


def last_checkpoints(folder: Path, count: int, tokens: int | None) -> list[Path]:
    """List the last ``count`` that are kept up to ``tokens``, the oldest first.

    Of those of one moment the full one is taken: it may have finer weights.

    Raises:
        RecipeError: there are fewer.
    """
    by_tokens = {tokens_of(path): path for path in complete_checkpoints(folder, EITHER[::-1])}
    early = sorted(one for one in by_tokens if tokens is None or one <= tokens)
    if len(early) < count:
        there = ", ".join(f"{one:_}" for one in early) or "none"
        problem = f"{count} checkpoints are asked for, and there are {len(early)}"
        remedy = (
            f"kept are {there}; checkpoint.weights_every_tokens keeps weights alone for good"
        )
        raise RecipeError("last", problem, remedy)
    return [by_tokens[one] for one in early[-count:]]


def check_whole(
    checkpoints: Sequence[Path], parts: Sequence[float], fingerprint: str
) -> list[MergedCheckpoint]:
    """Compare every byte with the markers, and these with the recipe.

    Raises:
        RecipeError: one is damaged, or of another recipe.
    """
    found = []
    for checkpoint, part in zip(checkpoints, parts, strict=True):
        marker = check_alone(checkpoint)
        if marker.fingerprint != fingerprint:
            problem = f"is of the recipe {marker.fingerprint}, this run of {fingerprint}"
            raise RecipeError(str(checkpoint), problem, "merge checkpoints of one run")
        found.append(MergedCheckpoint(checkpoint, marker, part))
    return found


def buffers_of(section: Mapping[str, Any]) -> frozenset[str]:
    """Name what a recipe's model holds beside its weights."""
    with torch.device("meta"):
        model: nn.Module = build(section, "model")
    return frozenset(name for name, _ in model.named_buffers())


def average_into(
    target: Path, merged: Sequence[MergedCheckpoint], *, buffers: Collection[str]
) -> Files:
    """Write the average into the new folder ``target``, and return its files.

    At most one file's tensors are in memory, and two more. What is in ``buffers`` or holds no
    fractions is the newest checkpoint's: a router's bias that balances experts is no weight.

    Raises:
        RecipeError: they are not of one model.
        OSError: the file system forbids it, is full or has gone.
    """
    readers = [_Weights(one) for one in merged]
    newest = readers[-1]
    for reader in readers[:-1]:
        if reader.shapes != newest.shapes:
            problem = "has other weights than the newest"
            raise RecipeError(str(reader.checkpoint), problem, "merge checkpoints of one model")
    parts = [one.coefficient for one in merged]
    target.mkdir(parents=True)
    files: dict[str, tuple[FileSection, ...]] = {}
    groups = list(_groups(newest.shapes))
    for number, names in enumerate(groups, start=1):
        tensors = {
            f"{WEIGHTS}{name}": newest.read(name)
            if name in buffers or not newest.is_fraction(name)
            else _mean(name, readers, parts)
            for name in names
        }
        file = target / f"shard-{number:05d}-of-{len(groups):05d}.safetensors"
        files[file.name] = (_write(file, tensors),)
    return files


class _Weights:
    """The weights of a checkpoint, whatever layout wrote it; masters where it has them."""

    def __init__(self, one: MergedCheckpoint) -> None:
        self.checkpoint = one.checkpoint
        self._reader = PieceReader(
            one.checkpoint, read_pieces(one.checkpoint, one.marker.files)
        )
        self._entries = self._reader.entries
        self.shapes = {
            name.removeprefix(WEIGHTS): tuple(entry.size)
            for name, entry in sorted(self._entries.items())
            if name.startswith(WEIGHTS)
        }

    def is_fraction(self, name: str) -> bool:
        return self._entries[f"{WEIGHTS}{name}"].properties.dtype.is_floating_point

    def read(self, name: str) -> Tensor:
        """Read a whole tensor in its own dtype, a weight's master in that of the master."""
        master = master_of(name)
        key = master if master in self._entries else f"{WEIGHTS}{name}"
        whole = torch.empty(self.shapes[name], dtype=self._entries[key].properties.dtype)
        read_alone({key: rows_of(whole) if key == master else whole}, self._reader)
        return whole


def _mean(name: str, readers: Sequence[_Weights], parts: Sequence[float]) -> Tensor:
    """Average in float32 or finer, the oldest first; equal tensors stay as they are."""
    mean, total = None, 0.0
    for reader, part in zip(readers, parts, strict=True):
        if part == 0.0:
            continue
        value = reader.read(name)
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        total += part
        mean = value if mean is None else mean.add_(value.sub_(mean), alpha=part / total)
    assert mean is not None, "the parts' sum is 1"
    return mean


def _groups(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[list[str]]:
    """Deal the tensors to files."""
    group, held = list[str](), 0
    for name, shape in shapes.items():
        size = 4 * prod(shape)
        if group and held + size > SHARD_BYTES:
            yield group
            group, held = [], 0
        group.append(name)
        held += size
    yield group


def _write(file: Path, tensors: dict[str, Tensor]) -> FileSection:
    """Write whole tensors as `components.checkpoint.layout` has them, down to the disk."""
    offsets = {name: {"saved_offsets": [0] * one.dim()} for name, one in tensors.items()}
    notes = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    save_file(tensors, file, notes)
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        return FileSection(file.stat().st_size, file_digest(stream, "sha256").hexdigest())
