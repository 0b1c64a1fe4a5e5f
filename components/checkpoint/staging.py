"""Staging of a checkpoint: tensors are copied to buffers of the host, and steps go on.

`torch.distributed.checkpoint.staging.DefaultStager` serves one save in torch 2.11: it empties
itself after the first, and a second ends in a KeyError.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

Kind = tuple[torch.Size, torch.dtype]


class HostBuffers:
    """Copies of tensors on the host, in memory that the next save uses again.

    Page-locked memory, to which copies run at the full speed of the bus, is CUDA's.
    """

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._free: dict[Kind, list[Tensor]] = defaultdict(list)
        self._used: list[Tensor] = []

    def stage(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy tensors; they may change as soon as this returns."""
        copies = [self._take(tensor) for tensor in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=self._pinned)
        if self._pinned:
            torch.cuda.synchronize()
        return copies

    def release(self) -> None:
        """Take back all buffers: what was staged has been written."""
        for buffer in self._used:
            self._free[buffer.shape, buffer.dtype].append(buffer)
        self._used.clear()

    def _take(self, tensor: Tensor) -> Tensor:
        free = self._free[tensor.shape, tensor.dtype]
        buffer = (
            free.pop()
            if free
            else torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pinned)
        )
        self._used.append(buffer)
        return buffer
