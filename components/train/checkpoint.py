"""Checkpoints: torch.distributed.checkpoint over safetensors, complete or not there at all.

The tensors go through torch's distributed checkpoint, so that any layout can write and read
them, but into safetensors files: its default format keeps a pickle. What is no tensor (step,
tokens) is one small JSON file, written last.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from components.errors import RecipeError
from components.parallelism.shards import WeightShard

MARKER = "progress.json"


@dataclass(frozen=True)
class Progress:
    """Where a run is on its clock."""

    step: int
    tokens: int
    loss_scale: Mapping[str, Any] | None = None


def save_checkpoint(
    folder: Path,
    shards: Sequence[WeightShard],
    optimizer: torch.optim.Optimizer,
    progress: Progress,
) -> Path:
    """Write a checkpoint beside, mark it, rename it to its place; every rank calls this."""
    if not any(optimizer.state.values()):  # in float16 the first steps may all overflow
        _make_state(shards, optimizer)
    target = folder / f"tokens-{progress.tokens:015d}"
    beside = folder / f".{target.name}"
    if dist.get_rank() == 0:
        shutil.rmtree(beside, ignore_errors=True)
    dist.barrier()
    writer = HuggingFaceStorageWriter(str(beside), save_distributed=True)
    save(_tensors(shards, optimizer), storage_writer=writer)
    if dist.get_rank() == 0:
        hashes = {file.name: _sha256(file) for file in sorted(beside.glob("*.safetensors"))}
        marker = asdict(progress) | {"files": hashes}
        (beside / MARKER).write_text(json.dumps(marker, indent=1) + "\n", "utf-8")
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
    dist.barrier()
    return target


def load_checkpoint(
    checkpoint: Path, shards: Sequence[WeightShard], optimizer: torch.optim.Optimizer
) -> Progress:
    """Fill weights and optimizer in place, whatever layout wrote the checkpoint.

    Raises:
        RecipeError: a file of the checkpoint is missing or was changed.
    """
    progress = read_progress(checkpoint)
    _make_state(shards, optimizer)
    # What is filled is the memory of the weights and of the state itself.
    load(_tensors(shards, optimizer), storage_reader=HuggingFaceStorageReader(str(checkpoint)))
    return progress


def newest_checkpoint(folder: Path) -> Path | None:
    """Find the last checkpoint that is complete: one without its marker never counts."""
    complete = [marker.parent for marker in folder.glob(f"tokens-*/{MARKER}")]
    return max(complete, default=None)


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last ``keep``, oldest first."""
    complete = sorted(marker.parent for marker in folder.glob(f"tokens-*/{MARKER}"))
    for old in complete[:-keep]:
        (old / MARKER).unlink()  # without its marker a half-removed one is not taken
        shutil.rmtree(old)


def read_progress(checkpoint: Path) -> Progress:
    """Check the files against the marker and return where the run was.

    Raises:
        RecipeError: a file is missing or its contents are not what was written.
    """
    marker = json.loads((checkpoint / MARKER).read_text("utf-8"))
    for name, sha256 in marker["files"].items():
        file = checkpoint / name
        if not file.is_file() or _sha256(file) != sha256:
            what = "was changed after it was written" if file.is_file() else "is missing"
            remedy = f"remove {checkpoint}: the checkpoint before it is taken then"
            raise RecipeError(str(file), what, remedy)
    return Progress(
        step=marker["step"], tokens=marker["tokens"], loss_scale=marker.get("loss_scale")
    )


def _tensors(
    shards: Sequence[WeightShard], optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Name every tensor of the state; the optimizer's numbers come from the recipe."""
    tensors = {f"model.{shard.name}": shard.weight.detach() for shard in shards}
    for shard in shards:
        for key, value in optimizer.state[shard.parameter].items():
            is_alike = value.shape == shard.parameter.shape and value.dim() > 0
            tensors[f"optimizer.state.{shard.name}.{key}"] = (
                shard.whole(value) if is_alike else value
            )
    return tensors


def _make_state(shards: Sequence[WeightShard], optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer make its state: a step without gradients and without a rate.

    Nothing is counted: all of the state is 0, as it is before a first step.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for shard in shards:
        shard.parameter.grad = torch.zeros_like(shard.parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for shard in shards:
        shard.parameter.grad = None
        for value in optimizer.state[shard.parameter].values():
            value.zero_()


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
