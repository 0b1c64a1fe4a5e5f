"""Gradient buckets: sums over microbatches; one collective averages each bucket over ranks.

A bucket is (ranks, columns). Row r has rank r's rows of all weights, one after the other, so a
reduce-scatter needs no packing. If every rank has the whole gradients, a bucket has one row.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from components.distributed import collectives
from components.distributed.devices import StateDtypes
from components.distributed.weight_shards import WeightShard, get_local_part, rows_of

GRADS_AHEAD = 4  # for ZeRO 2: a fast rank does not wait for the others at once


class BucketLayout:
    """Positions of each shard's rows in a bucket of (ranks, columns)."""

    def __init__(self, shards: Sequence[WeightShard]) -> None:
        self.shards = tuple(shards)
        self.param_mesh = shards[0].param_mesh
        self.ranks = self.param_mesh.shard.size() if shards[0].split else 1
        self.rows = [rows_of(get_local_part(shard.weight)).shape for shard in shards]
        self._lengths = [-(-shape[0] // self.ranks) for shape in self.rows]
        self._widths = [prod(shape[1:]) for shape in self.rows]
        sizes = zip(self._lengths, self._widths, strict=True)
        self._starts = [0]
        for length, width in sizes:
            self._starts.append(self._starts[-1] + length * width)

    @property
    def num_columns(self) -> int:
        return self._starts[-1]

    @property
    def num_elements(self) -> int:
        return self.ranks * self.num_columns

    def view_rows(self, packed: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """View a weight's rows in ``packed``, (ranks, columns): full ranks and the remainder.

        The shapes are (full ranks, rows per rank, width) and (remaining rows, width).
        """
        length, width = self._lengths[place], self._widths[place]
        columns = packed[:, self._starts[place] : self._starts[place + 1]]
        rows = columns.view(self.ranks, length, width)
        full, left = divmod(self.rows[place][0], length) if length else (0, 0)
        return rows[:full], rows[full, :left] if left else rows[:0, 0]

    def add_rows(self, packed: Tensor, place: int, rows: Tensor, *, fresh: bool) -> None:
        """Add a weight's ``rows`` to its part of the bucket; ``fresh`` overwrites the part."""
        full, left = self.view_rows(packed, place)
        flat = rows.reshape(len(rows), self._widths[place])
        head = full.shape[0] * self._lengths[place]
        for there, here in ((full, flat[:head].view(full.shape)), (left, flat[head:])):
            if fresh:
                there.copy_(here)
            else:
                there.add_(here)

    def unpack_rows(self, packed: Tensor, place: int, rows: Tensor) -> None:
        """Copy a weight's part of the bucket into its ``rows``."""
        full, left = self.view_rows(packed, place)
        flat = rows.view(len(rows), self._widths[place])
        head = full.shape[0] * self._lengths[place]
        flat[:head].view(full.shape).copy_(full)
        flat[head:].copy_(left)

    def local_rows(self, mine: Tensor, place: int) -> Tensor:
        """View this rank's rows of a weight in this rank's bucket row, (1, columns)."""
        like = self.shards[place].parameter
        part = mine[0, self._starts[place] : self._starts[place + 1]]
        return part[: like.numel()].view(like.shape)


def build_buckets(shards: Sequence[WeightShard], limit: int) -> list[BucketLayout]:
    """Put consecutive shards of one process group into buckets of up to ``limit`` elements.

    A single shard may be larger than ``limit``. Experts and dense weights have different groups
    and alternate in a model: "consecutive" ignores the shards of the other group.
    """
    groups = []
    for param_mesh in dict.fromkeys(shard.param_mesh for shard in shards):
        of_group = [shard for shard in shards if shard.param_mesh is param_mesh]
        starts, num_elements = [0], 0
        for index, shard in enumerate(of_group):
            size = get_local_part(shard.weight).numel()
            if num_elements and num_elements + size > limit:
                starts.append(index)
                num_elements = 0
            num_elements += size
        groups += [of_group[a:b] for a, b in pairwise([*starts, len(of_group)])]
    order = {id(shard): place for place, shard in enumerate(shards)}
    return [
        BucketLayout(group) for group in sorted(groups, key=lambda group: order[id(group[-1])])
    ]


class GradBucket:
    """Bucket: a sum of gradients over microbatches, then over ranks, divided by ``divisor``."""

    def __init__(self, layout: BucketLayout, *, dtypes: StateDtypes, divisor: int) -> None:
        self.layout = layout
        self._dtypes = dtypes
        self._divisor = divisor
        self.sums: Tensor | None = None
        self._arrived = [0] * len(layout.shards)
        self._works: list[dist.Work] = []
        self._sent: Tensor | None = None
        self._mine: Tensor | None = None

    @torch.no_grad()
    def add_gradient(self, place: int, rows: Tensor) -> None:
        """Add a microbatch's gradient, given as rows of the whole weight."""
        self.layout.add_rows(self._made_sums(), place, rows, fresh=self._arrived[place] == 0)
        self._arrived[place] += 1

    def is_full(self, arrivals: Sequence[int]) -> bool:
        return all(map(int.__ge__, self._arrived, arrivals))

    @torch.no_grad()
    def start_reduce(self) -> None:
        """Start the sum over ranks in the dtype ``reduce``."""
        groups, sums = self.layout.param_mesh, self._made_sums()
        for place, arrived in enumerate(self._arrived):
            if not arrived:  # the weight was unused
                for part in self.layout.view_rows(sums, place):
                    part.zero_()
        self._sent = sums.to(self._dtypes.reduce)
        self.sums = None
        self._arrived = [0] * len(self._arrived)
        if self.layout.ranks > 1:
            self._mine = self._sent.new_empty(1, self.layout.num_columns)
            scatter = collectives.reduce_scatter
            self._begin(scatter, self._mine, self._sent, group=groups.shard.get_group())
        else:
            self._mine = self._sent
            if groups.grad_sync.size() > 1:
                self._begin(dist.all_reduce, self._mine, group=groups.grad_sync.get_group())

    def start_replica_reduce(self) -> None:
        """Start the sum over the replicas of a sharded model, if there are several."""
        groups = self.layout.param_mesh
        if self.layout.ranks > 1 and groups.replicate.size() > 1 and self._sent is not None:
            self._wait()
            self._sent = None
            assert self._mine is not None
            self._begin(dist.all_reduce, self._mine, group=groups.replicate.get_group())

    @torch.no_grad()
    def wait_for_mean(self) -> list[Tensor]:
        """Wait for the mean and return a view of each shard's rows, in the dtype ``master``."""
        self.start_replica_reduce()
        self._wait()
        assert self._mine is not None
        mean = self._mine.to(self._dtypes.master).div_(self._divisor)
        self._sent = self._mine = None
        return [self.layout.local_rows(mean, place) for place in range(len(self.layout.shards))]

    def _made_sums(self) -> Tensor:
        if self.sums is None:
            size = self.layout.ranks, self.layout.num_columns
            device = get_local_part(self.layout.shards[0].weight).device
            # The first gradient overwrites this memory. The last ranks' padding is never read.
            self.sums = torch.empty(size, dtype=self._dtypes.accumulate, device=device)
        return self.sums

    def _begin(
        self, collective: Callable[..., dist.Work], *given: Tensor, **named: object
    ) -> None:
        self._works.append(collective(*given, async_op=True, **named))

    def _wait(self) -> None:
        collectives.wait_for_works(self._works)
        self._works.clear()


class BucketQueue:
    """Buckets of one stage, in the order in which a backward pass fills them.

    Every rank reduces them in this order, even if another bucket is full first; otherwise ranks
    would add up different buckets. At most ``ahead`` reductions run at once. ``on_mean``
    receives each shard's mean. ``uses`` counts a weight's gradients in one pass: one per stage
    of this rank with the weight. If ``recurs``, each bucket is reduced after every pass.
    """

    def __init__(
        self,
        buckets: Sequence[GradBucket],
        *,
        uses: Callable[[WeightShard], int],
        ahead: int,
        recurs: bool,
        on_mean: Callable[[WeightShard, Tensor], None],
    ) -> None:
        self._buckets = buckets
        self._recurs = recurs
        self._uses = [[uses(shard) for shard in bucket.layout.shards] for bucket in buckets]
        self._ahead = ahead
        self._on_mean = on_mean
        self._times = 0
        self._next = 0
        self._started: set[GradBucket] = set()
        self._in_progress: list[GradBucket] = []

    def start_passes(self, times: int) -> None:
        """Reduce a bucket after ``times`` gradients of its weights; 0: at `finish_reduce`."""
        self._times = times
        self._next = 0
        self._started.clear()

    def add_gradient(self, bucket: GradBucket, place: int, rows: Tensor) -> None:
        """Add one pass's gradient of a weight, as rows, and start reducing full buckets."""
        gone = bucket in self._started and not self._recurs
        assert not gone, "a gradient came after its bucket had left"
        while bucket in self._in_progress:  # with the previous microbatch
            self._finish()
        bucket.add_gradient(place, rows)
        while self._times and self._is_full(self._next):
            self._start(self._buckets[self._next])
            self._next = (self._next + 1) % len(self._buckets)

    def finish_reduce(self) -> None:
        """Reduce the remaining buckets and wait for all of them."""
        for bucket in self._buckets:
            if bucket.sums is not None or bucket not in self._started:
                self._start(bucket)
        for bucket in self._in_progress:
            bucket.start_replica_reduce()
        while self._in_progress:
            self._finish()

    def _is_full(self, index: int) -> bool:
        return self._buckets[index].is_full([self._times * uses for uses in self._uses[index]])

    def _start(self, bucket: GradBucket) -> None:
        bucket.start_reduce()
        self._started.add(bucket)
        if self._in_progress:
            self._in_progress[-1].start_replica_reduce()
        self._in_progress.append(bucket)
        while len(self._in_progress) > self._ahead:
            self._finish()

    def _finish(self) -> None:
        bucket = self._in_progress.pop(0)
        for shard, mean in zip(bucket.layout.shards, bucket.wait_for_mean(), strict=True):
            self._on_mean(shard, mean)
