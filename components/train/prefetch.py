"""Prefetch: a thread reads the next step's batch while this one computes.

Torch's ``DataLoader`` reads ahead in processes only, and not what a guard may still change.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from threading import Thread

import torch
from torch.profiler import record_function

from components.profiling.parts import NEXT_BATCH
from components.train.batches import StepBatch, StepBatches

THREAD = "read-ahead"


class Prefetcher:
    """Give the batch of the step after the last one that was taken, while it is of ``steps``.

    One step is read ahead, into pinned memory where ``device`` is not a CPU, so that its copy
    waits for nothing. A guard may go back or leave samples out: then other positions are asked
    for than were read, which are dropped. An error in reading is raised when its batch is due.
    """

    def __init__(
        self,
        batches: StepBatches,
        taken: Callable[[], int],
        *,
        steps: range,
        device: torch.device,
    ) -> None:
        self._batches, self._taken, self._steps = batches, taken, steps
        self._device = device

    def __len__(self) -> int:
        """Say any length: without one Lightning takes a batch before the last one's step."""
        return sys.maxsize

    def __iter__(self) -> Iterator[StepBatch]:
        ahead: BatchThread | None = None
        try:
            while (step := self._taken()) in self._steps:
                positions = self._batches.positions(step)
                if ahead is not None and ahead.positions != positions:
                    ahead.join()  # never two at once
                    ahead = None
                batch = (ahead or self._read(positions)).result()
                ahead = self._begin(step + 1)
                yield batch
                del batch  # or it would live as long as the next one
        finally:
            if ahead is not None:
                ahead.join()

    def _begin(self, step: int) -> "BatchThread | None":
        return self._read(self._batches.positions(step)) if step in self._steps else None

    def _read(self, positions: Sequence[int]) -> "BatchThread":
        return BatchThread(self._batches, positions, self._device)


class BatchThread(Thread):
    """Read the samples at ``positions`` in a thread that ends with it."""

    def __init__(
        self, batches: StepBatches, positions: Sequence[int], device: torch.device
    ) -> None:
        super().__init__(name=THREAD, daemon=True)  # a file system that hangs keeps no process
        self.positions = positions
        self._batches, self._device = batches, device
        self._batch: Future[StepBatch] = Future()
        self.start()

    def run(self) -> None:
        pinned = self._device.type != "cpu"
        try:
            if pinned:  # each thread begins with the first device
                torch.accelerator.set_device_index(self._device)
            tokens = self._batches.read(self.positions, pinned=pinned)
            self._batch.set_result(StepBatch(tokens, self._batches.digest(self.positions)))
        except BaseException as error:  # noqa: BLE001  # whoever waits for the batch raises it
            self._batch.set_exception(error)

    def result(self) -> StepBatch:
        with record_function(NEXT_BATCH):
            return self._batch.result()
