"""What a checkpoint holds of a rank by global names, and saving it while training goes on.

The steps wait for a copy, another thread does the rest. One checkpoint is written at a time;
the next waits for it. The thread has a process group of its own, since the steps' collectives
must not come between its own. The buffers are ours, too: torch 2.11's ``DefaultStager`` empties
itself after the first save, and a second ends in a KeyError.
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

from components.checkpoint import retention
from components.checkpoint.copy_out import copy_out
from components.checkpoint.layout import CheckpointLayout, Share
from components.checkpoint.metadata import Kind, Marker, RunProgress
from components.checkpoint.sections import files_of, write_blocks
from components.distributed.collectives import by_first, together
from components.distributed.copies import holders, readers, send
from components.distributed.data import DataParallel
from components.distributed.node_tree import NodeTree
from components.distributed.weight_shards import WeightShard, local, rows_of
from components.run.disk import Patience

T = TypeVar("T")
_Task = tuple[Marker, Share, list[Tensor]]  # the marker without files, this rank's pieces


class HostBuffers:
    """Copies of tensors on the host, in memory that the next save uses again."""

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"  # copies then run at the full speed of the bus
        self._free: dict[Any, list[Tensor]] = defaultdict(list)  # by shape and dtype
        self._used: list[Tensor] = []

    def stage(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy tensors; they may change as soon as this returns."""
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

    def release(self) -> None:
        """Take back all buffers: what was staged has been written."""
        for buffer in self._used:
            self._free[buffer.shape, buffer.dtype].append(buffer)
        self._used.clear()


WEIGHTS = "model."  # before each weight's name

Read = Callable[[dict[str, Tensor]], None]


class State(Protocol):
    """What a checkpoint holds of one rank; every method is called by all ranks."""

    def tensors(self) -> dict[str, Tensor]:
        """Name every tensor: what several ranks have whole, any of them may give."""

    def fill(self, read: Read, saved: Collection[str], *, fresh_optimizer: bool) -> None:
        """Call ``read``, all ranks as often, with tensors to fill; some ranks may have none.

        ``saved`` are all names in the checkpoint. Where it has a weight's master, that is the
        weight, whatever either run rounds. With ``fresh_optimizer`` moments and steps are 0, as
        before a first step.
        """


class DealtState(State, Protocol):
    """State of which each rank reads a part."""

    def share(self) -> dict[str, Tensor]:
        """Name what ``fill`` asks this rank to read in this layout: together, all of it."""


MOMENTS = "optimizer.state."  # before each weight's name, also where its master is


_Dealt = tuple[str, Tensor, DeviceMesh, int]  # who holds it alike, and who of them reads it


def _is_own(among: DeviceMesh, reader: int) -> bool:
    return reader == among.get_local_rank()


def master_of(name: str) -> str:
    """Name the finer copy of a rounded weight in a checkpoint, its rows (`rows_of`)."""
    return f"{MOMENTS}{name}.master"


class ShardState:
    """Weights as DTensors or plain tensors, buffers, and the optimizer's state of shards.

    ``model.NAME`` has the weight's own shape, or is a buffer; ``optimizer.state.NAME.KEY`` is
    as long as its rows are (`rows_of`), whatever divides them. The optimizer's numbers come
    from the recipe.
    """

    def __init__(self, parallel: DataParallel, optimizer: torch.optim.Optimizer) -> None:
        self._parallel = parallel
        self._shards = parallel.shards
        self._optimizer = optimizer

    def tensors(self) -> dict[str, Tensor]:
        self._parallel.settle()
        if not any(self._optimizer.state.values()):  # in float16 the first steps may overflow
            self._make()
        weights = {f"{WEIGHTS}{shard.name}": shard.weight.detach() for shard in self._shards}
        weights |= dict(self._buffers())
        masters = {
            master_of(shard.name): shard.whole(shard.parameter.detach())
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
                whole = shard.whole(value) if is_alike else value
                yield shard, f"{MOMENTS}{shard.name}.{key}", whole

    def fill(self, read: Read, saved: Collection[str], *, fresh_optimizer: bool) -> None:
        """Fill what the optimizer updates and its state; of ranks with the same one reads.

        Weights that are rounded follow from their masters.
        """
        self._make()
        wanted, finer = self._wanted(saved, fresh_optimizer=fresh_optimizer)
        held = self._deal(wanted)
        read({name: value for name, value, among, one in held if _is_own(among, one)})
        for _, value, among, one in held:
            send(value, among, one)
        for shard, whole in finer.items():
            shard.parameter.detach().copy_(shard.own_rows(rows_of(local(whole))))
        self._parallel.spread()
        self._parallel.settle()

    def share(self) -> dict[str, Tensor]:
        wanted, _ = self._wanted(self.tensors(), fresh_optimizer=False)
        held = self._deal(wanted)
        return {name: value for name, value, among, one in held if _is_own(among, one)}

    def _wanted(
        self, saved: Collection[str], *, fresh_optimizer: bool
    ) -> tuple[list[tuple[WeightShard, str, Tensor]], dict[WeightShard, Tensor]]:
        """List what is to be filled, and of it what then has to go into masters."""
        finer = {}
        wanted = [] if fresh_optimizer else list(self._moments())
        for shard in self._shards:
            if (name := master_of(shard.name)) in saved:
                value = shard.whole(shard.parameter.detach())
            else:
                # Of a rounded weight none of the finer numbers may be lost on the way.
                name, value = f"{WEIGHTS}{shard.name}", shard.weight.detach()
                if shard.is_master:
                    value = finer[shard] = value.to(shard.parameter.dtype)
            wanted.append((shard, name, value))
        return wanted, finer

    def _deal(self, wanted: Sequence[tuple[WeightShard, str, Tensor]]) -> list[_Dealt]:
        """Choose one rank of those that hold a part alike: it reads for the others."""
        held = [(name, value, holders(shard, value)) for shard, name, value in wanted]
        held += [(name, value, self._parallel.stage_ranks) for name, value in self._buffers()]
        chosen = readers([(value, among) for _, value, among in held])
        return [(*one, reader) for one, reader in zip(held, chosen, strict=True)]

    def _make(self) -> None:
        """Let the optimizer make its state, 0 as before a first step, by one without a rate."""
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
    """A checkpoint that is in its place, and what it took.

    The steps stood still for ``stall_seconds``, of which they waited ``waited_seconds`` for the
    checkpoint before; ``reasons`` say why ranks waited for the file system.
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
    """Write checkpoints into ``folder``, and keep of them what the policy does.

    Without a ``stager`` the steps wait for all of it. A file system that is away or full is
    waited for unless the run was ``stopped``. All ranks call, and agree over ``group``.
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
        self._layouts: dict[Kind, CheckpointLayout] = {}
        self._pool = ThreadPool(1)  # its thread keeps no process from ending
        # Else a process that is interrupted may take the pool's pipe before the pool.
        weakref.finalize(self, self._pool.close)
        self._job: AsyncResult[list[FinishedCheckpoint]] | None = None

    def save(
        self,
        state: State,
        progress: RunProgress,
        *,
        kinds: Sequence[Kind],
        held_out_loss: float | None,
    ) -> list[FinishedCheckpoint]:
        """Begin a checkpoint of each kind, and return what has been finished meanwhile.

        Raises:
            RecipeError: on all ranks, one could not be written; those before it are whole.
        """
        began = time.perf_counter()
        finished = self.wait()
        waited = time.perf_counter() - began
        marker = Marker(
            kind="tokens",
            fingerprint=self.fingerprint,
            progress=progress,
            held_out_loss=held_out_loss,
            files={},
        )
        if self.stager is not None:
            self.stager.release()
        tensors = state.tensors()
        tasks = [self._prepare(replace(marker, kind=kind), tensors) for kind in kinds]
        stall = time.perf_counter() - began
        self._job = self._pool.apply_async(self._write_all, (tasks, began, waited, stall))
        return finished if self.stager else [*finished, *self.wait()]

    def poll(self) -> list[FinishedCheckpoint]:
        """Return what has been finished on this rank, without waiting; see `has_failed`."""
        return self.wait() if self._job and self._job.ready() and not self.has_failed else []

    @property
    def has_failed(self) -> bool:
        """Whether `wait` would raise; other ranks may find out a moment later."""
        return self._job is not None and self._job.ready() and not self._job.successful()

    def wait(self) -> list[FinishedCheckpoint]:
        """Wait for the checkpoint that is being written, if there is one.

        Raises:
            RecipeError: it could not be written; all ranks raise it.
        """
        job, self._job = self._job, None
        return job.get() if job else []

    def close(self) -> None:
        """Let the checkpoint that is being written come to its end, whichever."""
        if self._job:
            self._job.wait()
        self._pool.terminate()

    def _prepare(self, marker: Marker, tensors: Mapping[str, Tensor]) -> _Task:
        if marker.kind == "weights":
            tensors = {name: one for name, one in tensors.items() if name.startswith(WEIGHTS)}
        if marker.kind not in self._layouts:
            layout = CheckpointLayout(tensors, files=self.files, group=self.group)
            self._layouts[marker.kind] = layout
        layout = self._layouts[marker.kind]
        pieces = layout.pick(tensors)
        return marker, layout.share, self.stager.stage(pieces) if self.stager else pieces

    def _write_all(
        self, tasks: Sequence[_Task], began: float, waited: float, stall: float
    ) -> list[FinishedCheckpoint]:
        """Write one after another, in the other thread; the stall counts for the first."""
        finished: list[FinishedCheckpoint] = []
        for task in tasks:
            marker = self._write(*task)
            self._copy_out(marker)
            reasons = together(self._patience.take_reasons, self.group)
            now = time.perf_counter()
            one = FinishedCheckpoint(
                progress=marker.progress,
                folder=self.folder / marker.name,
                bytes=task[1].checkpoint_bytes,
                stall_seconds=stall if self.stager else now - began,
                waited_seconds=waited,
                seconds=now - began,
                reasons=tuple(sorted(set().union(*reasons))),
            )
            finished.append(one)
            began, stall, waited = now, 0.0, 0.0
        self._by_first(lambda: retention.prune(self.folder, self.policy))
        return finished

    def _write(self, marker: Marker, share: Share, tensors: Sequence[Tensor]) -> Marker:
        """Write beside, mark, rename; nothing where a run saves again what it went on from."""
        target = self.folder / marker.name
        size, count = share.checkpoint_bytes, share.checkpoint_files
        if not self._by_first(lambda: retention.clear(target, needed_bytes=size, files=count)):
            return self._by_first(lambda: retention.amend(target, marker.progress))
        blocks, file = share.blocks(tensors), retention.beside(target) / share.file
        sections = together(lambda: write_blocks(file, blocks, self._patience), self.group)
        files = files_of([one for of_rank in sections for one in of_rank])
        whole = replace(marker, files=files)
        self._by_first(lambda: retention.complete(target, whole))
        return whole

    def _copy_out(self, marker: Marker) -> None:
        """Copy what stays for good: no later checkpoint will have it removed."""
        if self.copy_to is None:
            return

        def stays() -> bool:
            saved = list(retention.saved_in(self.folder).values())
            return marker.progress.tokens in self.policy.kept_for_good(saved)

        if marker.kind == "weights" or self._by_first(stays):
            saved, among = self.folder / marker.name, (self.group, self._patience)
            copy_out(saved, marker, self.copy_to, *among)

    def _by_first(self, task: Callable[[], T]) -> T:
        """Let the first rank do it, again for as long as the file system may be away."""
        return by_first(lambda: self._patience(self.folder, task), self.group)
