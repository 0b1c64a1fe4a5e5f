"""Prefetch: a thread reads the next step's batch during the current step."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from threading import Thread

import torch
from torch.profiler import record_function

from components.profiling.parts import NEXT_BATCH
from components.train.batches import RankBatches, StepBatch

THREAD = "read-ahead"


class Prefetcher:
    """Iterator over the batches of ``steps``: always the step after the last accepted one.

    ``taken`` returns the number of accepted steps. One step is prefetched, into pinned memory
    if ``device`` is not a CPU, so that the copy is asynchronous. The batch is dropped if a
    guard rolls back or skips samples. A read error is raised when its batch is due.
    """

    def __init__(
        self,
        batches: RankBatches,
        taken: Callable[[], int],
        *,
        steps: range,
        device: torch.device,
    ) -> None:
        self._batches, self._taken, self._steps = batches, taken, steps
        self._device = device

    def __len__(self) -> int:
        """Return a dummy length. Without it, Lightning fetches a batch one step too early."""
        return sys.maxsize

    def __iter__(self) -> Iterator[StepBatch]:
        ahead: BatchThread | None = None
        try:
            while (step := self._taken()) in self._steps:
                positions = self._batches.list_sample_numbers(step)
                if ahead is not None and ahead.positions != positions:
                    ahead.join()  # only one thread at a time
                    ahead = None
                batch = (ahead or self._read(positions)).step_batch()
                ahead = self._begin(step + 1)
                yield batch
                del batch  # free it before the next one arrives
        finally:
            if ahead is not None:
                ahead.join()

    def _begin(self, step: int) -> "BatchThread | None":
        return (
            self._read(self._batches.list_sample_numbers(step)) if step in self._steps else None
        )

    def _read(self, positions: Sequence[int]) -> "BatchThread":
        return BatchThread(self._batches, positions, self._device)


class BatchThread(Thread):
    """Thread that reads the samples at ``positions`` and then ends."""

    def __init__(
        self, batches: RankBatches, positions: Sequence[int], device: torch.device
    ) -> None:
        super().__init__(name=THREAD, daemon=True)  # the process can exit while a read hangs
        self.positions = positions
        self._batches, self._device = batches, device
        self._batch: Future[StepBatch] = Future()
        self.start()

    def run(self) -> None:
        pinned = self._device.type != "cpu"
        try:
            if pinned:  # a new thread's current device is the first one
                torch.accelerator.set_device_index(self._device)
            tokens = self._batches.read_samples(self.positions, pinned=pinned)
            self._batch.set_result(
                StepBatch(tokens, self._batches.hash_samples(self.positions))
            )
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits for the batch
            self._batch.set_exception(error)

    def step_batch(self) -> StepBatch:
        with record_function(NEXT_BATCH):
            return self._batch.result()
