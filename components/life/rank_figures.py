"""What each rank tells all others of itself now and then, in a sum that is made anyway."""

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Told:
    """Of each rank the median seconds that a step computed, and the bytes that it holds."""

    seconds: Sequence[float]
    memory_bytes: Sequence[float]


class RankFigures:
    """Gather figures of all ranks every ``every_steps`` steps, by a sum.

    A rank puts its own in its place and zeros elsewhere, so the sum over ranks has them all.
    """

    def __init__(self, *, every_steps: int) -> None:
        self._every_steps = every_steps
        self._seconds: list[float] = []
        self.told: Told | None = None

    def note(self, seconds: float) -> None:
        """Note how long this rank computed in a step."""
        self._seconds.append(seconds)

    def own(self, *, step: int, device: torch.device) -> Tensor:
        """Return what this rank adds to the sum after ``step``, most often nothing."""
        if step % self._every_steps:
            return torch.zeros(0, dtype=torch.float64, device=device)
        figures = torch.zeros(2, dist.get_world_size(), dtype=torch.float64)
        mine = median(self._seconds), float(held_bytes(device))
        figures[:, dist.get_rank()] = torch.tensor(mine, dtype=torch.float64)
        self._seconds.clear()
        return figures.flatten().to(device)

    def take(self, sums: Tensor) -> None:
        """Read the sums; ``told`` is None after a step in which nothing was told."""
        self.told = Told(*sums.view(2, -1).tolist()) if len(sums) else None


def held_bytes(device: torch.device) -> int:
    """Read what tensors hold on ``device``, on a CPU the resident memory of this process."""
    if device.type != "cpu":
        return int(torch.accelerator.memory_allocated(device))
    pages = Path("/proc/self/statm")
    if not pages.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # its peak, where no Linux is
    return int(pages.read_text("ascii").split()[1]) * resource.getpagesize()
