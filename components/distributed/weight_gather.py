"""Weight gather: updated rows reach all ranks under the next forward pass (ZeRO 1 and 2).

Each bucket is one all-gather in the dtype of the weights. A layer's attention and MLP wait for
those of their own weights alone; a compiled layer, whose parts are called within a graph, for
all of its. While one computes, those of the next two are under way.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn

from components.distributed import collectives
from components.distributed.grad_buckets import BucketLayout
from components.distributed.weight_shards import local, rows_of

WEIGHTS_AHEAD = 2


class WeightGather:
    """Copy what the optimizer updated into the weights of all ranks, bucket by bucket.

    ``buckets`` are in the order in which a forward pass wants them.
    """

    def __init__(self, buckets: Sequence[BucketLayout], *, ahead: int) -> None:
        self._buckets = buckets
        self._ahead = ahead
        self._arrived = self._departed = len(buckets)
        self._under_way: list[tuple[dist.Work | None, Tensor]] = []
        self._last_of_module: list[int] = []

    def watch(self, stage: nn.Module) -> None:
        """Let each module of a stage wait for its weights before it computes."""
        last = {
            id(shard.weight): index
            for index, bucket in enumerate(self._buckets)
            for shard in bucket.shards
        }
        tied = getattr(stage, "embedding", None)
        for module in _called(stage):
            # The readout has no weight of its own where it reads the embedding's.
            owner = module if list(module.parameters()) else tied
            needed = (
                [last[id(one)] for one in owner.parameters() if id(one) in last]
                if owner
                else []
            )
            if needed:
                self._hook(module, max(needed))

    def _hook(self, module: nn.Module, index: int) -> None:
        self._last_of_module = sorted({*self._last_of_module, index})

        def wait(*_: object) -> None:
            self.settle(index)

        module.register_forward_pre_hook(wait, prepend=True)

    def begin(self) -> None:
        """Send off the first buckets; call it after the update."""
        self._arrived = self._departed = 0
        self._fill()
        if not self._ahead:
            self.settle()

    def settle(self, index: int | None = None) -> None:
        """Wait until all buckets have come, or those up to ``index``."""
        end = len(self._buckets) if index is None else index + 1
        while self._arrived < end:
            self._arrive()
            self._fill()

    def _fill(self) -> None:
        """Send off what the next modules wait for: fewer would leave the link idle."""
        coming = (end + 1 for end in self._last_of_module if end >= self._arrived)
        end = max([*islice(coming, self._ahead), self._arrived + max(self._ahead, 1)])
        while self._departed < min(end, len(self._buckets)):
            self._depart(self._buckets[self._departed])
            self._departed += 1

    @torch.no_grad()
    def _depart(self, bucket: BucketLayout) -> None:
        weight = local(bucket.shards[0].weight)
        if bucket.ranks == 1:
            self._under_way.append((None, weight))
            return
        mine = weight.new_zeros(1, bucket.columns)
        for place, shard in enumerate(bucket.shards):
            bucket.own(mine, place).copy_(shard.parameter)
        everyones = mine.new_empty(bucket.ranks, bucket.columns)
        group = bucket.param_mesh.shard.get_group()
        work = collectives.all_gather(everyones, mine, group=group, async_op=True)
        self._under_way.append((work, everyones))

    @torch.no_grad()
    def _arrive(self) -> None:
        bucket = self._buckets[self._arrived]
        work, everyones = self._under_way.pop(0)
        if work is not None:
            collectives.wait([work])
        for place, shard in enumerate(bucket.shards):
            rows = rows_of(local(shard.weight))
            if bucket.ranks > 1:
                bucket.take(everyones, place, rows)
            elif shard.is_master:
                rows.copy_(shard.parameter)
        self._arrived += 1


def _called(stage: nn.Module) -> Iterator[nn.Module]:
    """Give the modules whose calls run hooks, each with weights that no other of them has."""
    for child in stage.children():
        if child is getattr(stage, "mtp", None):
            yield from child.children()
            continue
        if child is not getattr(stage, "layers", None):
            yield child
            continue
        for layer in child.children():
            parts = [layer] if getattr(layer, "in_graph", False) else layer.children()
            yield from (part for part in parts if list(part.parameters()))
