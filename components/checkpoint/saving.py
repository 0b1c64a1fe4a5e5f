"""Saving while training goes on: the steps wait for a copy, another thread does the rest.

One checkpoint is written at a time; the next waits for it. The thread has a process group of
its own, since the steps' collectives must not come between its own.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch.distributed as dist
from torch import Tensor

from components.checkpoint import retention
from components.checkpoint.error_sync import by_first, together
from components.checkpoint.layout import CheckpointLayout, Share
from components.checkpoint.metadata import Kind, Marker, RunProgress
from components.checkpoint.sections import files_of, write_blocks
from components.checkpoint.state import WEIGHTS, HostBuffers, State
from components.run.disk import Patience

T = TypeVar("T")


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


class _Task(NamedTuple):
    marker: Marker  # but for the files
    share: Share
    tensors: list[Tensor]  # this rank's pieces


@dataclass(kw_only=True, eq=False)
class Saver:
    """Write checkpoints into ``folder``, and keep of them what the policy does.

    Without a ``stager`` the steps wait for all of it. A file system that is away or full is
    waited for unless the run was ``stopped``. All ranks of ``group``, of CPU tensors, call.
    """

    folder: Path
    fingerprint: str
    group: dist.ProcessGroup
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
            RecipeError: one of the checkpoints could not be written; all ranks raise it, and
                those before are whole.
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
        return _Task(marker, layout.share, self.stager.stage(pieces) if self.stager else pieces)

    def _write_all(
        self, tasks: Sequence[_Task], began: float, waited: float, stall: float
    ) -> list[FinishedCheckpoint]:
        """Write one after another, in the other thread; the stall counts for the first."""
        finished: list[FinishedCheckpoint] = []
        for task in tasks:
            marker = self._write(task)
            self._copy_out(marker)
            reasons = together(self._patience.take_reasons, self.group)
            now = time.perf_counter()
            one = FinishedCheckpoint(
                progress=marker.progress,
                folder=self.folder / marker.name,
                bytes=task.share.checkpoint_bytes,
                stall_seconds=stall if self.stager else now - began,
                waited_seconds=waited,
                seconds=now - began,
                reasons=tuple(sorted(set().union(*reasons))),
            )
            finished.append(one)
            began, stall, waited = now, 0.0, 0.0
        self._by_first(lambda: retention.prune(self.folder, self.policy))
        return finished

    def _write(self, task: _Task) -> Marker:
        """Write beside, mark, rename; nothing where a run saves again what it went on from."""
        target, share = self.folder / task.marker.name, task.share
        size, count = share.checkpoint_bytes, share.checkpoint_files
        if not self._by_first(lambda: retention.clear(target, needed_bytes=size, files=count)):
            return self._by_first(lambda: retention.amend(target, task.marker.progress))
        blocks, file = share.blocks(task.tensors), retention.beside(target) / share.file
        sections = together(lambda: write_blocks(file, blocks, self._patience), self.group)
        files = files_of([one for of_rank in sections for one in of_rank])
        marker = replace(task.marker, files=files)
        self._by_first(lambda: retention.complete(target, marker))
        return marker

    def _copy_out(self, marker: Marker) -> None:
        """Copy what stays for good: no later checkpoint will have it removed."""
        if self.copy_to is None:
            return

        def stays() -> bool:
            saved = list(retention.saved_in(self.folder).values())
            return marker.progress.tokens in self.policy.kept_for_good(saved)

        if marker.kind == "weights" or self._by_first(stays):
            saved, among = self.folder / marker.name, (self.group, self._patience)
            retention.copy_out(saved, marker, self.copy_to, *among)

    def _by_first(self, task: Callable[[], T]) -> T:
        """Let the first rank do it, again for as long as the file system may be away."""
        return by_first(lambda: self._patience(self.folder, task), self.group)
