"""How long this rank computes, without what it waits for others.

On a CPU it is the time that the thread was running: one that waits in a collective sleeps. On
other devices it is the device's own clock around each microbatch's forward pass: what ranks of
a tensor, context or expert group wait for one another is in it, so those look alike; what
pipeline and data ranks wait for is not.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class OwnTime:
    """Add up the seconds of computing since they were last taken."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._events: list[tuple[torch.Event, torch.Event]] = []

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count what is computed inside; the host does not wait for the device."""
        if self._device.type == "cpu":
            began = time.thread_time()
            yield
            self._seconds += time.thread_time() - began
            return
        before, after = (torch.Event(self._device, enable_timing=True) for _ in range(2))
        before.record()
        yield
        after.record()
        self._events.append((before, after))

    def take(self) -> float:
        """Return the seconds so far, and begin anew; a step's end has waited for the device."""
        for before, after in self._events:
            after.synchronize()
            self._seconds += before.elapsed_time(after) / 1_000
        self._events.clear()
        seconds, self._seconds = self._seconds, 0.0
        return seconds
