"""Rank health: figures of each rank, slow ranks, growing memory, and replica comparison.

Replicated weights are compared, because memory and arithmetic can fail silently. In BLOOM's
training, LayerNorm weights, which all tensor ranks replicate, diverged unnoticed
(https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md).
Each rank sums the bits of each of its weights as integers on its device. Replicas must have
equal sums.
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
from components.distributed.weight_shards import WeightShard, get_local_part
from components.energy.counters import EnergyReading, Meter

_PARTS = 3  # fields of an EnergyReading
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class RankReport:
    """Median seconds per step and memory of each rank; energy totals of each meter."""

    seconds: Sequence[float]
    memory_bytes: Sequence[float]
    energy: Sequence[EnergyReading]


class RankFigures:
    """Gather figures of all ranks every ``every_steps`` steps, by a sum over ranks.

    Each rank writes its figures at its own index, and zeros elsewhere. All ranks have the same
    number of ``meters``. They are read when figures are gathered, and in between if necessary.
    """

    def __init__(self, *, every_steps: int) -> None:
        self._every_steps = every_steps
        self._seconds: list[float] = []
        self.last_report: RankReport | None = None
        self.meters: Sequence[Meter] = ()

    def record_seconds(self, seconds: float) -> None:
        """Record this rank's compute time in a step."""
        self._seconds.append(seconds)
        now = time.monotonic()
        for meter in self.meters:
            meter.keep_up(now)

    def build_summand(self, *, step: int, device: torch.device) -> Tensor:
        """Return this rank's summand after ``step``: empty unless figures are due."""
        if step % self._every_steps:
            return torch.zeros(0, dtype=torch.float64, device=device)
        figures = torch.zeros(2, dist.get_world_size(), dtype=torch.float64)
        mine = median(self._seconds), float(held_bytes(device))
        figures[:, dist.get_rank()] = torch.tensor(mine, dtype=torch.float64)
        self._seconds.clear()
        return torch.cat([figures.flatten().to(device), self.own_energy(device)])

    def own_energy(self, device: torch.device) -> Tensor:
        """Return the counts of this rank's meters as a vector, for a sum over ranks."""
        now = time.monotonic()
        counted = [astuple(meter.measure_energy(now)) for meter in self.meters]
        return torch.tensor(counted, dtype=torch.float64, device=device).flatten()

    def update_report(self, sums: Tensor) -> None:
        """Set ``last_report`` from the sums over ranks, or to None if no figures were due."""
        if not len(sums):
            self.last_report = None
            return
        ranks = len(sums) - _PARTS * len(self.meters)
        seconds, memory_bytes = sums[:ranks].view(2, -1).tolist()
        self.last_report = RankReport(seconds, memory_bytes, everyones_energy(sums[ranks:]))


def everyones_energy(sums: Tensor) -> list[EnergyReading]:
    """Convert sums over ranks of `RankFigures.own_energy` to one reading for each meter."""
    return [
        EnergyReading(joules=joules, counted_seconds=counted, passed_seconds=passed)
        for joules, counted, passed in sums.view(-1, _PARTS).tolist()
    ]


def held_bytes(device: torch.device) -> int:
    """Return the allocated bytes on ``device``; on a CPU, this process's resident memory."""
    if device.type != "cpu":
        return int(torch.accelerator.memory_allocated(device))
    pages = Path("/proc/self/statm")
    if not pages.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the peak, without Linux
    return int(pages.read_text("ascii").split()[1]) * resource.getpagesize()


@dataclass(frozen=True)
class Slow:
    """A slow rank: it takes ``ratio`` times as long as the median of similar ranks."""

    rank: int
    seconds: float
    ratio: float


def slow_ranks(
    seconds: Sequence[float], alike: Sequence[Hashable], *, ratio: float
) -> list[Slow]:
    """Return the ranks that take at least ``ratio`` times the median time of similar ranks.

    ``seconds`` is the compute time of each rank, ``alike`` its kind of work, such as its
    pipeline stage. The median tolerates almost half of the ranks being slow. Of two ranks, the
    faster one is the median.
    """
    by_kind: dict[Hashable, list[float]] = defaultdict(list)
    for kind, mine in zip(alike, seconds, strict=True):
        by_kind[kind].append(mine)
    medians = {kind: median_low(values) for kind, values in by_kind.items()}
    return [
        Slow(rank=rank, seconds=mine, ratio=mine / medians[kind])
        for rank, (mine, kind) in enumerate(zip(seconds, alike, strict=True))
        if medians[kind] > 0 and mine >= ratio * medians[kind]
    ]


class Growth:
    """Detector of growing memory. It reports each growth once, until memory grows again."""

    LOOKS = 5  # medians of 5 are compared: one evaluation or checkpoint is not a trend

    def __init__(self, *, fraction: float) -> None:
        self._fraction = fraction
        self._looks: dict[int, list[float]] = defaultdict(list)  # the first ones and the last

    def find_growth(self, memory_bytes: Sequence[float]) -> dict[int, float]:
        """Return the ranks with too much growth of memory, with the fraction of growth."""
        grown = {}
        for rank, bytes_now in enumerate(memory_bytes):
            looks = self._looks[rank]
            looks.append(bytes_now)
            del looks[self.LOOKS : -self.LOOKS]
            first, last = looks[: self.LOOKS], looks[self.LOOKS :]
            growth = median(last) / median(first) - 1 if len(last) == self.LOOKS else 0.0
            if growth >= self._fraction:
                grown[rank], self._looks[rank] = growth, last
        return grown


class ReplicasDifferError(RuntimeError):
    """Replicas of a weight differ between ranks. A restart repairs them."""


@dataclass(frozen=True)
class ReplicaDifference:
    """A weight with replicas that differ."""

    weight: str
    ranks: tuple[int, ...]  # the minority, or all ranks if there is no majority


def bit_sum(tensor: Tensor) -> Tensor:
    """Return the int64 sum of a tensor's bits as integers. A flipped bit always changes it."""
    return tensor.contiguous().view(_BITS[tensor.element_size()]).sum(dtype=torch.int64)


def compare_replicas(shards: Sequence[WeightShard], mesh: Mesh) -> list[ReplicaDifference]:
    """Compare the replicas of weights. All ranks call this; the ranks of a group agree.

    Full weights are compared over all ranks that have them. Weights that the engine shards are
    compared over the ranks with the same rows. Weights that tensor parallelism does not shard
    are compared over the tensor ranks.
    """
    if not shards:
        return []
    sums = torch.stack([bit_sum(get_local_part(shard.weight)) for shard in shards])
    dividing = [_dividing_axes(shard) for shard in shards]
    differences: list[ReplicaDifference] = []
    for param_mesh in (mesh.dense, mesh.experts):
        # Whether the model's weights, not only the updated rows, are sharded: ZeRO 3.
        pieces = param_mesh.shard
        axes = set(pieces.mesh_dim_names or ()) if pieces.size() > 1 else set()
        mine = [place for place, shard in enumerate(shards) if shard.param_mesh is param_mesh]
        whole = [place for place in mine if not axes & dividing[place]]
        divided = [place for place in mine if axes & dividing[place]]
        differences += _compare(shards, sums, whole, param_mesh.grad_sync)
        differences += _compare(shards, sums, divided, param_mesh.replicate)
    undivided = [place for place, axes in enumerate(dividing) if "tensor" not in axes]
    differences += _compare(shards, sums, undivided, mesh.get_axis("tensor"))
    return list(dict.fromkeys(differences))


def _dividing_axes(shard: WeightShard) -> set[str]:
    """Return the mesh axes that shard the model's weight."""
    weight = shard.weight
    if not isinstance(weight, DTensor):
        return set()
    named = zip(weight.device_mesh.mesh_dim_names or (), weight.placements, strict=True)
    return {name for name, placement in named if not placement.is_replicate()}


def _compare(
    shards: Sequence[WeightShard], sums: Tensor, places: list[int], group: DeviceMesh
) -> list[ReplicaDifference]:
    """Gather the bit sums of one group, and return the weights and ranks that differ."""
    if group.size() == 1 or not places:
        return []
    mine = sums[places]
    all_sums = mine.new_empty(group.size(), len(places))
    all_gather(all_sums, mine[None], group=group.get_group())
    differ = (all_sums != all_sums[0]).any(dim=0)
    ranks = dist.get_process_group_ranks(group.get_group())
    differences = []
    for column in differ.nonzero().flatten().tolist():
        outliers = tuple(ranks[place] for place in find_minority(all_sums[:, column].tolist()))
        differences.append(
            ReplicaDifference(weight=shards[places[column]].name, ranks=outliers)
        )
    return differences


def find_minority(values: Sequence[int]) -> list[int]:
    """Return the indices of values other than the most frequent one; all indices on a tie."""
    (most, count), *others = Counter(values).most_common()
    tie = any(number == count for _, number in others)
    return [place for place, value in enumerate(values) if tie or value != most]
