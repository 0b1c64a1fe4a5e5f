"""Checkpoints: torch.distributed.checkpoint over safetensors, complete or not there at all.

The tensors go through torch's distributed checkpoint, so that any layout can write and read
them, but into safetensors files: its default format keeps a pickle. What is no tensor (step,
tokens) is one small JSON file, written last, with the digests of all others.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from components.errors import RecipeError
from components.parallelism.shards import WeightShard
from components.train.agreement import together
from components.train.digests import NotingWriter, check_files, check_names, hash_files

MARKER = "progress.json"


@dataclass(frozen=True)
class Progress:
    """Where a run is on its clock."""

    step: int
    tokens: int
    loss_scale: Mapping[str, Any] | None = None
    guard: Mapping[str, Any] | None = None


Read = Callable[[dict[str, Tensor]], None]


class State(Protocol):
    """What a checkpoint holds of one rank; every method is called by all ranks."""

    def tensors(self) -> dict[str, Tensor]:
        """Name every tensor: what several ranks have whole, any of them may give."""

    def fill(self, read: Read) -> None:
        """Call ``read`` with tensors to fill, all ranks with the same names each time."""


class ShardState:
    """Weights as DTensors or plain tensors, and the optimizer's state of their shards.

    ``model.NAME`` has the weight's own shape; ``optimizer.state.NAME.KEY`` is as long as its
    rows are (`rows_of`), whatever divides them. The optimizer's numbers come from the recipe.
    """

    def __init__(self, shards: Sequence[WeightShard], optimizer: torch.optim.Optimizer) -> None:
        self._shards = shards
        self._optimizer = optimizer

    def tensors(self) -> dict[str, Tensor]:
        if not any(self._optimizer.state.values()):  # in float16 the first steps may overflow
            self._make()
        tensors = {f"model.{shard.name}": shard.weight.detach() for shard in self._shards}
        for shard in self._shards:
            for key, value in self._optimizer.state[shard.parameter].items():
                is_alike = value.shape == shard.parameter.shape and value.dim() > 0
                tensors[f"optimizer.state.{shard.name}.{key}"] = (
                    shard.whole(value) if is_alike else value
                )
        return tensors

    def fill(self, read: Read) -> None:
        self._make()
        read(self.tensors())  # what is filled is the memory of the weights and of the state

    def _make(self) -> None:
        """Let the optimizer make its state: a step without gradients and without a rate.

        Nothing is counted: all of the state is 0, as it is before a first step.
        """
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for shard in self._shards:
            shard.parameter.grad = torch.zeros_like(shard.parameter)
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
        self._optimizer.step()
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for shard in self._shards:
            shard.parameter.grad = None
            for value in self._optimizer.state[shard.parameter].values():
                value.zero_()


def save_checkpoint(folder: Path, state: State, progress: Progress) -> Path:
    """Write a checkpoint beside, mark it, rename it to its place; every rank calls this.

    Raises:
        RecipeError: what a rank wrote cannot be read back, or the marker not be written; all
            ranks raise it, and the checkpoint is not there.
    """
    target = folder / f"tokens-{progress.tokens:015d}"
    beside = folder / f".{target.name}"
    if dist.get_rank() == 0:
        shutil.rmtree(beside, ignore_errors=True)
    dist.barrier()
    writer = NotingWriter(folder=beside)
    save(state.tensors(), storage_writer=writer)
    digests: dict[str, str] = {}
    for of_rank in together(lambda: hash_files(beside, writer.written)):
        digests |= of_rank

    def complete() -> None:
        if dist.get_rank() == 0:
            _complete(beside, target, progress, digests)

    together(complete)
    return target


def _complete(beside: Path, target: Path, progress: Progress, digests: dict[str, str]) -> None:
    try:
        check_names(beside, digests)
        marker = asdict(progress) | {"files": dict(sorted(digests.items()))}
        (beside / MARKER).write_text(json.dumps(marker, indent=1) + "\n", "utf-8")
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
    except OSError as error:
        remedy = "mend the file system, then resume the run: the checkpoint before is whole"
        raise RecipeError(
            str(target), f"cannot be completed: {error.strerror}", remedy
        ) from error


def load_checkpoint(checkpoint: Path, state: State) -> Progress:
    """Fill weights and optimizer in place, whatever layout or engine wrote the checkpoint.

    Raises:
        RecipeError: a file of the checkpoint is missing, was changed or added, or its tensors
            are those of another model or optimizer; all ranks raise it.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    progress, *_ = together(lambda: _read_share(checkpoint, rank=rank, ranks=ranks))
    reader = HuggingFaceStorageReader(str(checkpoint))
    found = {
        name: tuple(getattr(entry, "size", ()))
        for name, entry in reader.read_metadata().state_dict_metadata.items()
    }
    taken: set[str] = set()

    def read(tensors: dict[str, Tensor]) -> None:
        expected = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        together(lambda: _check_alike(checkpoint, expected, found))
        taken.update(expected)
        load(tensors, storage_reader=HuggingFaceStorageReader(str(checkpoint)))

    state.fill(read)
    _check_all_taken(checkpoint, taken, found)
    return progress


Shapes = Mapping[str, tuple[int, ...]]


def _check_alike(checkpoint: Path, expected: Shapes, found: Shapes) -> None:
    for name, shape in sorted(expected.items()):
        if name not in found:
            raise _of_another_model(checkpoint, f"it lacks {name} {shape}")
        if found[name] != shape:
            raise _of_another_model(checkpoint, f"{name} is {found[name]} there, {shape} here")


def _check_all_taken(checkpoint: Path, taken: set[str], found: Shapes) -> None:
    """Ask all ranks: each stage takes its own layers."""
    if left := sorted(set(found).difference(*together(lambda: taken))):
        raise _of_another_model(checkpoint, f"it has {left[0]}, {len(left)} such in all")


def _of_another_model(checkpoint: Path, difference: str) -> RecipeError:
    return RecipeError(
        str(checkpoint),
        f"is of another model or optimizer: {difference}",
        "resume with the recipe that wrote it; action=export and model.init_from take weights "
        "alone",
    )


def newest_checkpoint(folder: Path) -> Path | None:
    """Find the last checkpoint that is complete: one without its marker never counts."""
    complete = [marker.parent for marker in folder.glob(f"tokens-*/{MARKER}")]
    return max(complete, default=None)


def checkpoint_up_to(folder: Path, tokens: int) -> Path | None:
    """Find the last complete checkpoint of at most ``tokens``."""
    complete = [marker.parent for marker in folder.glob(f"tokens-*/{MARKER}")]
    name = f"tokens-{tokens:015d}"
    return max((one for one in complete if one.name <= name), default=None)


def amend_progress(checkpoint: Path, progress: Progress) -> None:
    """Put another ``progress`` beside the same tensors, at once.

    Raises:
        RecipeError: the marker cannot be written.
    """
    file = checkpoint / MARKER
    beside = checkpoint.parent / f".{checkpoint.name}.{MARKER}"
    try:
        files = json.loads(file.read_text("utf-8"))["files"]
        marker = asdict(progress) | {"files": files}
        beside.write_text(json.dumps(marker, indent=1) + "\n", "utf-8")
        beside.replace(file)
    except OSError as error:
        remedy = "mend the file system, then resume the run"
        raise RecipeError(str(file), f"cannot be written: {error.strerror}", remedy) from error


def drop_checkpoints_after(checkpoint: Path) -> list[str]:
    """Remove all later ones, the last first, and return their names."""
    later = sorted(checkpoint.parent.glob(f"tokens-*/{MARKER}"), reverse=True)
    dropped = [marker.parent for marker in later if marker.parent > checkpoint]
    for one in dropped:
        _remove(one)
    return [one.name for one in dropped]


def _remove(checkpoint: Path) -> None:
    (checkpoint / MARKER).unlink()  # without its marker a half-removed one is not taken
    shutil.rmtree(checkpoint)


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last ``keep``, oldest first."""
    complete = sorted(marker.parent for marker in folder.glob(f"tokens-*/{MARKER}"))
    for old in complete[:-keep]:
        _remove(old)


def read_progress(checkpoint: Path) -> Progress:
    """Check all files against the marker, alone, and return where the run was.

    Raises:
        RecipeError: a file is missing or too many, or its contents are not what was written.
    """
    return _read_share(checkpoint, rank=0, ranks=1)


def _read_share(checkpoint: Path, *, rank: int, ranks: int) -> Progress:
    file = checkpoint / MARKER
    try:
        marker = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        remedy = f"remove {checkpoint}: the checkpoint before it is taken then"
        raise RecipeError(str(file), f"cannot be read: {error}", remedy) from error
    check_files(checkpoint, marker["files"], rank=rank, ranks=ranks)
    return Progress(
        step=marker["step"],
        tokens=marker["tokens"],
        loss_scale=marker.get("loss_scale"),
        guard=marker.get("guard"),
    )
