"""Asynchronous saving of checkpoints, and the checkpoint state of a rank by global names.

Training steps wait only for a copy to the host, which a background thread writes, one
checkpoint at a time. The thread has its own process group: its collectives must not interleave
with the steps'. It has its own buffers: torch 2.11's ``DefaultStager`` clears itself after the
first save; the second raises KeyError.
"""

import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from components.checkpoint import metadata, retention
from components.checkpoint.copy_out import copy_out
from components.checkpoint.layout import CheckpointLayout, RankWritePlan
from components.checkpoint.metadata import CheckpointKind, Marker, RunProgress
from components.checkpoint.sections import files_of, write_blocks
from components.distributed.broadcast_read import assign_readers, find_holders, send_value
from components.distributed.collectives import by_first, gather_results
from components.distributed.data import DataParallel
from components.distributed.node_tree import NodeTree
from components.distributed.weight_shards import WeightShard, get_local_part, rows_of
from components.run.disk import Patience

T = TypeVar("T")
# A marker without files, this rank's share, and its pieces.
_Task = tuple[Marker, RankWritePlan, list[Tensor]]


class HostBuffers:
    """Host copies of tensors, in buffers that the next save reuses."""

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"  # for full bus bandwidth
        self._free: dict[Any, list[Tensor]] = defaultdict(list)  # by shape and dtype
        self._used: list[Tensor] = []

    def copy_to_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy tensors to the host. The tensors may change once this returns."""
        copies = []
        for tensor in tensors:
            shape, dtype, pinned = tensor.shape, tensor.dtype, self._pinned
            if not (free := self._free[shape, dtype]):
                free.append(torch.empty(shape, dtype=dtype, pin_memory=pinned))
            copies.append(free.pop().copy_(tensor, non_blocking=pinned))
        self._used += copies
        if self._pinned:
            torch.cuda.synchronize()
        return copies

    def release_buffers(self) -> None:
        """Free all buffers for reuse, after their contents were written."""
        for buffer in self._used:
            self._free[buffer.shape, buffer.dtype].append(buffer)
        self._used.clear()


WEIGHTS = "model."  # prefix of each weight's name

Read = Callable[[dict[str, Tensor]], None]


class State(Protocol):
    """Checkpoint state of one rank. All ranks call every method."""

    def collect_tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name. Of equal copies on several ranks, any may be saved."""

    def load_tensors(
        self, read: Read, saved: Collection[str], *, fresh_optimizer: bool
    ) -> None:
        """Call ``read`` with the tensors to fill. ``saved`` are all names in the checkpoint.

        All ranks call ``read`` equally often, some with no tensors. A weight is read from its
        master if the checkpoint has it, even if one of the two runs does not round weights.
        With ``fresh_optimizer``, moments and step counts are 0.
        """


class DealtState(State, Protocol):
    """State that the ranks read in parts."""

    def select_own_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that this rank reads. All ranks together read all tensors."""


MOMENTS = "optimizer.state."  # prefix of each weight's name, for moments and masters


_Dealt = tuple[str, Tensor, DeviceMesh, int]  # name, tensor, ranks with the same tensor, reader


def _own_parts(parts: Sequence[_Dealt]) -> dict[str, Tensor]:
    """Return the tensors that this rank reads."""
    return {part[0]: part[1] for part in parts if part[3] == part[2].get_local_rank()}


def master_of(name: str) -> str:
    """Return the name of a weight's master: the rows (`rows_of`) in higher precision."""
    return f"{MOMENTS}{name}.master"


class ShardState:
    """Checkpoint state: weights (DTensors or plain tensors), buffers, and optimizer state.

    ``model.NAME`` is a buffer or a weight in its own shape. ``optimizer.state.NAME.KEY`` has
    the shape of the full weight's rows (`rows_of`), in any sharding. The recipe sets the rest.
    """

    def __init__(self, parallel: DataParallel, optimizer: torch.optim.Optimizer) -> None:
        self._parallel = parallel
        self._shards = parallel.shards
        self._optimizer = optimizer

    def collect_tensors(self) -> dict[str, Tensor]:
        self._parallel.wait_for_weights()
        if not any(self._optimizer.state.values()):  # first float16 steps may all overflow
            self._make()
        weights = {f"{WEIGHTS}{shard.name}": shard.weight.detach() for shard in self._shards}
        weights |= dict(self._buffers())
        masters = {
            master_of(shard.name): shard.to_dtensor(shard.parameter.detach())
            for shard in self._shards
            if shard.is_master
        }
        return weights | masters | {name: value for _, name, value in self._moments()}

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        for name, buffer in self._parallel.buffers.items():
            yield f"{WEIGHTS}{name}", buffer

    def _moments(self) -> Iterator[tuple[WeightShard, str, Tensor]]:
        for shard in self._shards:
            for key, value in self._optimizer.state[shard.parameter].items():
                is_alike = value.shape == shard.parameter.shape and value.dim() > 0
                whole = shard.to_dtensor(value) if is_alike else value
                yield shard, f"{MOMENTS}{shard.name}.{key}", whole

    def load_tensors(
        self, read: Read, saved: Collection[str], *, fresh_optimizer: bool
    ) -> None:
        """Fill parameters and optimizer state; compute rounded weights from their masters.

        One rank reads for all ranks with the same part.
        """
        self._make()
        wanted, for_masters = self._wanted(saved, fresh_optimizer=fresh_optimizer)
        parts = self._deal(wanted)
        read(_own_parts(parts))
        for _, value, among, reader in parts:
            send_value(value, among, reader)
        for shard, whole in for_masters.items():
            shard.parameter.detach().copy_(shard.own_rows(rows_of(get_local_part(whole))))
        self._parallel.all_gather_updated()
        self._parallel.wait_for_weights()

    def select_own_tensors(self) -> dict[str, Tensor]:
        wanted, _ = self._wanted(self.collect_tensors(), fresh_optimizer=False)
        return _own_parts(self._deal(wanted))

    def _wanted(
        self, saved: Collection[str], *, fresh_optimizer: bool
    ) -> tuple[list[tuple[WeightShard, str, Tensor]], dict[WeightShard, Tensor]]:
        """List the tensors to fill, and those to copy into masters afterwards."""
        for_masters = {}
        wanted = [] if fresh_optimizer else list(self._moments())
        for shard in self._shards:
            if (name := master_of(shard.name)) in saved:
                value = shard.to_dtensor(shard.parameter.detach())
            else:
                # The checkpoint may have higher precision than the rounded weight.
                name, value = f"{WEIGHTS}{shard.name}", shard.weight.detach()
                if shard.is_master:
                    value = for_masters[shard] = value.to(shard.parameter.dtype)
            wanted.append((shard, name, value))
        return wanted, for_masters

    def _deal(self, wanted: Sequence[tuple[WeightShard, str, Tensor]]) -> list[_Dealt]:
        """Choose the rank that reads each part for all ranks with the same part."""
        parts = [(name, value, find_holders(shard, value)) for shard, name, value in wanted]
        parts += [(name, value, self._parallel.stage_ranks) for name, value in self._buffers()]
        chosen = assign_readers([(value, among) for _, value, among in parts])
        return [(*part, reader) for part, reader in zip(parts, chosen, strict=True)]

    def _make(self) -> None:
        """Create the optimizer's state by a step with learning rate 0, and set it to 0."""
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


@dataclass(frozen=True, kw_only=True)
class FinishedCheckpoint:
    """Completed checkpoint and its cost.

    ``stall_seconds`` of training include ``waited_seconds`` for the previous checkpoint.
    ``reasons`` are the file system errors that ranks waited for.
    """

    progress: RunProgress
    folder: Path
    bytes: int
    stall_seconds: float
    waited_seconds: float
    seconds: float
    reasons: tuple[str, ...]


@dataclass(kw_only=True, eq=False)
class Saver:
    """Writer of checkpoints into ``folder``, with retention by ``policy``.

    Without a ``stager``, the steps wait for the complete write. If the file system is full or
    unavailable, the writer retries unless the run is ``stopped``. All ranks call every method.
    """

    folder: Path
    fingerprint: str
    group: NodeTree
    stager: HostBuffers | None
    policy: retention.Policy
    files: int
    retry_seconds: float
    copy_to: Path | None
    stopped: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._patience = Patience(seconds=self.retry_seconds, stopped=self.stopped)
        self._layouts: dict[CheckpointKind, CheckpointLayout] = {}
        self._pool = ThreadPool(1)  # a daemon thread: the process can exit
        # Otherwise an interrupted process may delete the pool's pipe before the pool.
        weakref.finalize(self, self._pool.close)
        self._job: AsyncResult[list[FinishedCheckpoint]] | None = None

    def start_save(
        self,
        state: State,
        progress: RunProgress,
        *,
        kinds: Sequence[CheckpointKind],
        held_out_loss: float | None,
    ) -> list[FinishedCheckpoint]:
        """Start a checkpoint of each kind, and return the checkpoints completed since.

        All ranks raise RecipeError if a checkpoint cannot be written. Earlier ones are whole.
        """
        began = time.perf_counter()
        finished = self.wait_for_save()
        waited = time.perf_counter() - began
        marker = Marker(
            kind="tokens",
            fingerprint=self.fingerprint,
            progress=progress,
            held_out_loss=held_out_loss,
            files={},
        )
        if self.stager is not None:
            self.stager.release_buffers()
        tensors = state.collect_tensors()
        tasks = [self._prepare(replace(marker, kind=kind), tensors) for kind in kinds]
        stall = time.perf_counter() - began
        self._job = self._pool.apply_async(self._write_all, (tasks, began, waited, stall))
        return finished if self.stager else [*finished, *self.wait_for_save()]

    def poll_finished(self) -> list[FinishedCheckpoint]:
        """Return the checkpoints completed on this rank, without waiting. See `has_failed`."""
        return (
            self.wait_for_save()
            if self._job and self._job.ready() and not self.has_failed
            else []
        )

    @property
    def has_failed(self) -> bool:
        """Whether `wait_for_save` would raise. Other ranks may detect the failure later."""
        return self._job is not None and self._job.ready() and not self._job.successful()

    def wait_for_save(self) -> list[FinishedCheckpoint]:
        """Wait for the checkpoint in progress; RecipeError on all ranks if its write fails."""
        job, self._job = self._job, None
        return job.get() if job else []

    def close(self) -> None:
        """Wait for the checkpoint in progress, whether it succeeds or fails."""
        if self._job:
            self._job.wait()
        self._pool.terminate()

    def _prepare(self, marker: Marker, tensors: Mapping[str, Tensor]) -> _Task:
        if marker.kind == "weights":
            tensors = {
                name: tensor for name, tensor in tensors.items() if name.startswith(WEIGHTS)
            }
        if marker.kind not in self._layouts:
            layout = CheckpointLayout(tensors, files=self.files, group=self.group)
            self._layouts[marker.kind] = layout
        layout = self._layouts[marker.kind]
        pieces = layout.select_pieces(tensors)
        return marker, layout.share, self.stager.copy_to_host(pieces) if self.stager else pieces

    def _write_all(
        self, tasks: Sequence[_Task], began: float, waited: float, stall: float
    ) -> list[FinishedCheckpoint]:
        """Write the checkpoints in sequence, in the background thread."""
        finished: list[FinishedCheckpoint] = []
        for task in tasks:
            marker = self._write(*task)
            self._copy_out(marker)
            reasons = gather_results(self._patience.take_reasons, self.group)
            now = time.perf_counter()
            checkpoint = FinishedCheckpoint(
                progress=marker.progress,
                folder=self.folder / marker.folder_name,
                bytes=task[1].checkpoint_bytes,
                stall_seconds=stall if self.stager else now - began,
                waited_seconds=waited,
                seconds=now - began,
                reasons=tuple(sorted(set().union(*reasons))),
            )
            finished.append(checkpoint)
            began, stall, waited = now, 0.0, 0.0
        self._by_first(lambda: retention.prune_checkpoints(self.folder, self.policy))
        return finished

    def _write(self, marker: Marker, share: RankWritePlan, tensors: Sequence[Tensor]) -> Marker:
        """Write a temporary folder, add the marker, and rename the folder.

        If the checkpoint exists already (the run resumed from it), only its marker changes.
        """
        target = self.folder / marker.folder_name
        size, count = share.checkpoint_bytes, share.checkpoint_files
        if not self._by_first(
            lambda: retention.create_partial_folder(target, needed_bytes=size, files=count)
        ):
            return self._by_first(lambda: retention.replace_progress(target, marker.progress))
        blocks, file = (
            share.list_blocks(tensors),
            retention.get_partial_folder(target) / share.file,
        )
        sections = gather_results(
            lambda: write_blocks(file, blocks, self._patience), self.group
        )
        files = files_of([section for of_rank in sections for section in of_rank])
        whole = replace(marker, files=files)
        self._by_first(lambda: retention.complete_checkpoint(target, whole))
        return whole

    def _copy_out(self, marker: Marker) -> None:
        """Copy a checkpoint to ``copy_to`` if the policy keeps it forever."""
        if self.copy_to is None:
            return

        def is_permanent() -> bool:
            saved = map(metadata.tokens_of, metadata.complete_checkpoints(self.folder))
            return marker.progress.tokens in self.policy.select_permanent(saved)

        if marker.kind == "weights" or self._by_first(is_permanent):
            saved, among = self.folder / marker.folder_name, (self.group, self._patience)
            copy_out(saved, marker, self.copy_to, *among)

    def _by_first(self, task: Callable[[], T]) -> T:
        """Run ``task`` on the first rank, with retries while the file system is unavailable."""
        return by_first(lambda: self._patience(self.folder, task), self.group)
