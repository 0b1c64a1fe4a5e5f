"""Gradient buckets: microbatches add up in them, and one collective averages each over ranks.

A bucket lies in memory as (ranks, columns): row r has what rank r keeps of each of its weights,
one weight's columns after another's. So it is what a reduce-scatter takes, without packing.
Where ranks keep all, it has one row.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from components.distributed import collectives
from components.distributed.devices import StateDtypes
from components.distributed.weight_shards import WeightShard, local, rows_of

GRADS_AHEAD = 4  # of ZeRO 2: a rank that is ahead of others need not wait for them at once


class BucketLayout:
    """Where the rows of each shard lie in a bucket of (ranks, columns)."""

    def __init__(self, shards: Sequence[WeightShard]) -> None:
        self.shards = tuple(shards)
        self.param_mesh = shards[0].param_mesh
        self.ranks = self.param_mesh.shard.size() if shards[0].split else 1
        self.rows = [rows_of(local(shard.weight)).shape for shard in shards]
        self._lengths = [-(-shape[0] // self.ranks) for shape in self.rows]
        self._widths = [prod(shape[1:]) for shape in self.rows]
        sizes = zip(self._lengths, self._widths, strict=True)
        self._starts = [0]
        for length, width in sizes:
            self._starts.append(self._starts[-1] + length * width)

    @property
    def columns(self) -> int:
        return self._starts[-1]

    @property
    def numel(self) -> int:
        return self.ranks * self.columns

    def parts(self, packed: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """View a weight's rows in (ranks, columns): those of full ranks, and of the one after.

        They are (full ranks, rows a rank, width) and (rows left, width).
        """
        length, width = self._lengths[place], self._widths[place]
        columns = packed[:, self._starts[place] : self._starts[place + 1]]
        rows = columns.view(self.ranks, length, width)
        full, left = divmod(self.rows[place][0], length) if length else (0, 0)
        return rows[:full], rows[full, :left] if left else rows[:0, 0]

    def add(self, packed: Tensor, place: int, rows: Tensor, *, fresh: bool) -> None:
        """Add a weight's ``rows`` to what lies in its place; ``fresh`` writes over it."""
        full, left = self.parts(packed, place)
        flat = rows.reshape(len(rows), self._widths[place])
        head = full.shape[0] * self._lengths[place]
        for there, here in ((full, flat[:head].view(full.shape)), (left, flat[head:])):
            if fresh:
                there.copy_(here)
            else:
                there.add_(here)

    def take(self, packed: Tensor, place: int, rows: Tensor) -> None:
        """Copy what lies in a weight's place into its ``rows``."""
        full, left = self.parts(packed, place)
        flat = rows.view(len(rows), self._widths[place])
        head = full.shape[0] * self._lengths[place]
        flat[:head].view(full.shape).copy_(full)
        flat[head:].copy_(left)

    def own(self, mine: Tensor, place: int) -> Tensor:
        """View this rank's rows of a weight in its row of the bucket, (1, columns)."""
        like = self.shards[place].parameter
        part = mine[0, self._starts[place] : self._starts[place + 1]]
        return part[: like.numel()].view(like.shape)


def bucketed(shards: Sequence[WeightShard], limit: int) -> list[BucketLayout]:
    """Put neighbours of one group together until a bucket is full; some are larger alone.

    Experts and dense weights, whose groups differ, take turns in a model: each group's
    neighbours are those without the other's between them.
    """
    made = []
    for param_mesh in dict.fromkeys(shard.param_mesh for shard in shards):
        of_group = [shard for shard in shards if shard.param_mesh is param_mesh]
        starts, held = [0], 0
        for index, shard in enumerate(of_group):
            size = local(shard.weight).numel()
            if held and held + size > limit:
                starts.append(index)
                held = 0
            held += size
        made += [of_group[a:b] for a, b in pairwise([*starts, len(of_group)])]
    order = {id(shard): place for place, shard in enumerate(shards)}
    return [BucketLayout(one) for one in sorted(made, key=lambda one: order[id(one[-1])])]


class GradBucket:
    """One bucket's sums over microbatches, on their way to the mean over ranks.

    The sum over ranks is divided by ``divisor``.
    """

    def __init__(
        self,
        layout: BucketLayout,
        *,
        dtypes: StateDtypes,
        divisor: int,
    ) -> None:
        self.layout = layout
        self._dtypes = dtypes
        self._divisor = divisor
        self.sums: Tensor | None = None
        self._arrived = [0] * len(layout.shards)
        self._works: list[dist.Work] = []
        self._sent: Tensor | None = None
        self._mine: Tensor | None = None

    @torch.no_grad()
    def add(self, place: int, rows: Tensor) -> None:
        """Add the gradient of a microbatch, as rows of the whole weight."""
        self.layout.add(self._made_sums(), place, rows, fresh=self._arrived[place] == 0)
        self._arrived[place] += 1

    def is_full(self, arrivals: Sequence[int]) -> bool:
        return all(map(int.__ge__, self._arrived, arrivals))

    @torch.no_grad()
    def depart(self) -> None:
        """Begin to add up over ranks, in the dtype of the reduction."""
        groups, sums = self.layout.param_mesh, self._made_sums()
        for place, arrived in enumerate(self._arrived):
            if not arrived:  # nobody used it
                for part in self.layout.parts(sums, place):
                    part.zero_()
        self._sent = sums.to(self._dtypes.reduce)
        self.sums = None
        self._arrived = [0] * len(self._arrived)
        if self.layout.ranks > 1:
            self._mine = self._sent.new_empty(1, self.layout.columns)
            scatter = collectives.reduce_scatter
            self._begin(scatter, self._mine, self._sent, group=groups.shard.get_group())
        else:
            self._mine = self._sent
            if groups.grad_sync.size() > 1:
                self._begin(dist.all_reduce, self._mine, group=groups.grad_sync.get_group())

    def cross(self) -> None:
        """Begin to add up over the copies of a sharded model, where there are several."""
        groups = self.layout.param_mesh
        if self.layout.ranks > 1 and groups.replicate.size() > 1 and self._sent is not None:
            self._wait()
            self._sent = None
            assert self._mine is not None
            self._begin(dist.all_reduce, self._mine, group=groups.replicate.get_group())

    @torch.no_grad()
    def arrive(self) -> list[Tensor]:
        """Wait for the mean, and view each shard's rows of it, in the master's dtype."""
        self.cross()
        self._wait()
        assert self._mine is not None
        mean = self._mine.to(self._dtypes.master).div_(self._divisor)
        self._sent = self._mine = None
        return [self.layout.own(mean, place) for place in range(len(self.layout.shards))]

    def _made_sums(self) -> Tensor:
        if self.sums is None:
            size = self.layout.ranks, self.layout.columns
            device = local(self.layout.shards[0].weight).device
            # What arrives first is written over it; rows that the last ranks lack nobody reads.
            self.sums = torch.empty(size, dtype=self._dtypes.accumulate, device=device)
        return self.sums

    def _begin(
        self, collective: Callable[..., dist.Work], *given: Tensor, **named: object
    ) -> None:
        self._works.append(collective(*given, async_op=True, **named))

    def _wait(self) -> None:
        collectives.wait(self._works)
        self._works.clear()


class BucketQueue:
    """The buckets of one stage, in the order in which a backward pass fills them.

    They leave in this order on every rank, whatever comes first: ranks that sent other buckets
    at the same time would add up what does not belong together. At most ``ahead`` are under
    way. ``give`` gets each shard's mean. ``uses`` counts the gradients of a weight in a pass of
    all stages of this rank: one, or as many as hold it. A bucket that ``recurs`` leaves after
    every pass.
    """

    def __init__(
        self,
        buckets: Sequence[GradBucket],
        *,
        uses: Callable[[WeightShard], int],
        ahead: int,
        recurs: bool,
        give: Callable[[WeightShard, Tensor], None],
    ) -> None:
        self._buckets = buckets
        self._recurs = recurs
        self._uses = [[uses(shard) for shard in bucket.layout.shards] for bucket in buckets]
        self._ahead = ahead
        self._give = give
        self._times = 0
        self._next = 0
        self._departed: set[GradBucket] = set()
        self._under_way: list[GradBucket] = []

    def begin(self, times: int) -> None:
        """Let a bucket leave when its weights have gradients of ``times`` passes; 0: later."""
        self._times = times
        self._next = 0
        self._departed.clear()

    def add(self, bucket: GradBucket, place: int, rows: Tensor) -> None:
        """Take one pass's gradient of a weight, as rows, and send off what is full."""
        gone = bucket in self._departed and not self._recurs
        assert not gone, "a gradient came after its bucket had left"
        while bucket in self._under_way:  # with the microbatch before
            self._arrive()
        bucket.add(place, rows)
        while self._times and self._is_full(self._next):
            self._depart(self._buckets[self._next])
            self._next = (self._next + 1) % len(self._buckets)

    def end(self) -> None:
        """Send off what is left, and wait for all."""
        for bucket in self._buckets:
            if bucket.sums is not None or bucket not in self._departed:
                self._depart(bucket)
        for bucket in self._under_way:
            bucket.cross()
        while self._under_way:
            self._arrive()

    def _is_full(self, index: int) -> bool:
        return self._buckets[index].is_full([self._times * uses for uses in self._uses[index]])

    def _depart(self, bucket: GradBucket) -> None:
        bucket.depart()
        self._departed.add(bucket)
        if self._under_way:
            self._under_way[-1].cross()
        self._under_way.append(bucket)
        while len(self._under_way) > self._ahead:
            self._arrive()

    def _arrive(self) -> None:
        bucket = self._under_way.pop(0)
        for shard, mean in zip(bucket.layout.shards, bucket.arrive(), strict=True):
            self._give(shard, mean)
