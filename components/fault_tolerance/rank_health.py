"""Rank health: what each rank tells of itself, who is slow, whose memory or weights go astray.

Weights that several ranks hold are compared, for memory and arithmetic can err silently: in
BLOOM's training LayerNorm weights, which all tensor ranks hold, drifted apart unnoticed
(https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md).
Each rank adds up the bits of each of its weights as whole numbers, on its device; what ranks
must share must have equal sums.
"""

import resource
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median, median_low

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from components.distributed.collectives import all_gather
from components.distributed.mesh import Mesh
from components.distributed.weight_shards import WeightShard, local
from components.energy.counters import EnergyReading, Meter

_PARTS = 3  # of what a meter tells
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class RankReport:
    """Of each rank the median seconds of a step, and its bytes; of all what meters counted."""

    seconds: Sequence[float]
    memory_bytes: Sequence[float]
    energy: Sequence[EnergyReading]


class RankFigures:
    """Gather figures of all ranks every ``every_steps`` steps, by a sum.

    A rank puts its own in its place and zeros elsewhere, so the sum over ranks has them all.
    All ranks have as many ``meters``, read when they tell, and between where they must be.
    """

    def __init__(self, *, every_steps: int) -> None:
        self._every_steps = every_steps
        self._seconds: list[float] = []
        self.told: RankReport | None = None
        self.meters: Sequence[Meter] = ()

    def note(self, seconds: float) -> None:
        """Note how long this rank computed in a step."""
        self._seconds.append(seconds)
        now = time.monotonic()
        for meter in self.meters:
            meter.keep_up(now)

    def own(self, *, step: int, device: torch.device) -> Tensor:
        """Return what this rank adds to the sum after ``step``, most often nothing."""
        if step % self._every_steps:
            return torch.zeros(0, dtype=torch.float64, device=device)
        figures = torch.zeros(2, dist.get_world_size(), dtype=torch.float64)
        mine = median(self._seconds), float(held_bytes(device))
        figures[:, dist.get_rank()] = torch.tensor(mine, dtype=torch.float64)
        self._seconds.clear()
        return torch.cat([figures.flatten().to(device), self.own_energy(device)])

    def own_energy(self, device: torch.device) -> Tensor:
        """Return what the meters of this rank have counted, for a sum over ranks."""
        now = time.monotonic()
        counted = [astuple(meter.count(now)) for meter in self.meters]
        return torch.tensor(counted, dtype=torch.float64, device=device).flatten()

    def take(self, sums: Tensor) -> None:
        """Read the sums; ``told`` is None after a step in which nothing was told."""
        if not len(sums):
            self.told = None
            return
        ranks = len(sums) - _PARTS * len(self.meters)
        seconds, memory_bytes = sums[:ranks].view(2, -1).tolist()
        self.told = RankReport(seconds, memory_bytes, everyones_energy(sums[ranks:]))


def everyones_energy(sums: Tensor) -> list[EnergyReading]:
    """Read sums over ranks of `RankFigures.own_energy`, one for each meter."""
    return [
        EnergyReading(joules=joules, counted_seconds=counted, passed_seconds=passed)
        for joules, counted, passed in sums.view(-1, _PARTS).tolist()
    ]


def held_bytes(device: torch.device) -> int:
    """Read what tensors hold on ``device``, on a CPU the resident memory of this process."""
    if device.type != "cpu":
        return int(torch.accelerator.memory_allocated(device))
    pages = Path("/proc/self/statm")
    if not pages.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # its peak, where no Linux is
    return int(pages.read_text("ascii").split()[1]) * resource.getpagesize()


@dataclass(frozen=True)
class Slow:
    """A rank that needs ``ratio`` times the seconds of its like."""

    rank: int
    seconds: float
    ratio: float


def slow_ranks(
    seconds: Sequence[float], alike: Sequence[Hashable], *, ratio: float
) -> list[Slow]:
    """Name the ranks that need at least ``ratio`` times the median of those that are alike.

    ``seconds`` of computing and the kind of work, a pipeline stage, are given for each rank.
    The median bears that almost half of the ranks are slow; of two the faster one counts.
    """
    by_kind: dict[Hashable, list[float]] = defaultdict(list)
    for kind, mine in zip(alike, seconds, strict=True):
        by_kind[kind].append(mine)
    usual = {kind: median_low(values) for kind, values in by_kind.items()}
    return [
        Slow(rank=rank, seconds=mine, ratio=mine / usual[kind])
        for rank, (mine, kind) in enumerate(zip(seconds, alike, strict=True))
        if usual[kind] > 0 and mine >= ratio * usual[kind]
    ]


class Growth:
    """Notice memory that grows from look to look, and say so once until it has grown again."""

    LOOKS = 5  # of which the medians are compared: one evaluation or checkpoint is no trend

    def __init__(self, *, fraction: float) -> None:
        self._fraction = fraction
        self._looks: dict[int, list[float]] = defaultdict(list)  # the first ones and the last

    def look(self, memory_bytes: Sequence[float]) -> dict[int, float]:
        """Return by which fraction the memory of a rank has grown, where that is too much."""
        grown = {}
        for rank, here in enumerate(memory_bytes):
            looks = self._looks[rank]
            looks.append(here)
            del looks[self.LOOKS : -self.LOOKS]
            first, last = looks[: self.LOOKS], looks[self.LOOKS :]
            by = median(last) / median(first) - 1 if len(last) == self.LOOKS else 0.0
            if by >= self._fraction:
                grown[rank], self._looks[rank] = by, last
        return grown


class ReplicasDifferError(RuntimeError):
    """A rank has other weights than those that must have the same; a restart mends it."""


@dataclass(frozen=True)
class ReplicaDifference:
    """A weight that is not the same on all ranks that hold it."""

    weight: str
    ranks: tuple[int, ...]  # the fewer, or all where no majority says who errs


def bit_sum(tensor: Tensor) -> Tensor:
    """Add up a tensor's bits as whole numbers, an int64; one flipped bit always changes it."""
    return tensor.contiguous().view(_BITS[tensor.element_size()]).sum(dtype=torch.int64)


def compare_replicas(shards: Sequence[WeightShard], mesh: Mesh) -> list[ReplicaDifference]:
    """Compare what ranks must share; all ranks call this, and those that share agree.

    Over all ranks that hold a weight where each has the whole of it, over those with the same
    rows where the engine divides them; over tensor ranks what these do not divide.
    """
    if not shards:
        return []
    sums = torch.stack([bit_sum(local(shard.weight)) for shard in shards])
    dividing = [_dividing_axes(shard) for shard in shards]
    found: list[ReplicaDifference] = []
    for param_mesh in (mesh.dense, mesh.experts):
        # Whether the model's own weight, not what is updated of it, is in pieces: ZeRO 3.
        pieces = param_mesh.shard
        axes = set(pieces.mesh_dim_names or ()) if pieces.size() > 1 else set()
        mine = [place for place, shard in enumerate(shards) if shard.param_mesh is param_mesh]
        whole = [place for place in mine if not axes & dividing[place]]
        divided = [place for place in mine if axes & dividing[place]]
        found += _compare(shards, sums, whole, param_mesh.grad_sync)
        found += _compare(shards, sums, divided, param_mesh.replicate)
    kept = [place for place, axes in enumerate(dividing) if "tensor" not in axes]
    found += _compare(shards, sums, kept, mesh.axis("tensor"))
    return list(dict.fromkeys(found))


def _dividing_axes(shard: WeightShard) -> set[str]:
    """Name the axes of the mesh over which the model's weight is in pieces."""
    weight = shard.weight
    if not isinstance(weight, DTensor):
        return set()
    named = zip(weight.device_mesh.mesh_dim_names or (), weight.placements, strict=True)
    return {name for name, placement in named if not placement.is_replicate()}


def _compare(
    shards: Sequence[WeightShard], sums: Tensor, places: list[int], group: DeviceMesh
) -> list[ReplicaDifference]:
    """Gather the sums of one group, a whole number a weight and rank, and name who differs."""
    if group.size() == 1 or not places:
        return []
    mine = sums[places]
    everyones = mine.new_empty(group.size(), len(places))
    all_gather(everyones, mine[None], group=group.get_group())
    differ = (everyones != everyones[0]).any(dim=0)
    ranks = dist.get_process_group_ranks(group.get_group())
    found = []
    for column in differ.nonzero().flatten().tolist():
        rare = tuple(ranks[place] for place in minority(everyones[:, column].tolist()))
        found.append(ReplicaDifference(weight=shards[places[column]].name, ranks=rare))
    return found


def minority(values: Sequence[int]) -> list[int]:
    """Return the places of all values but the one that most have; all if there is no such."""
    (most, count), *others = Counter(values).most_common()
    tie = any(number == count for _, number in others)
    return [place for place, value in enumerate(values) if tie or value != most]
