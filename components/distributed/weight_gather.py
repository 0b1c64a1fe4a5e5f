"""Weight gather: all ranks get updated rows during the next forward pass (ZeRO 1 and 2).

Each bucket is one all-gather in the weights' dtype. A layer's attention and MLP wait only for
the buckets of their own weights. A compiled layer calls its parts within a graph, and waits for
all its buckets. While a module computes, the buckets of the next two are in transfer.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn

from components.distributed import collectives
from components.distributed.grad_buckets import BucketLayout
from components.distributed.weight_shards import get_local_part, rows_of

WEIGHTS_AHEAD = 2


class WeightGather:
    """All-gather of updated rows by ``buckets``, in the order of a forward pass."""

    def __init__(self, buckets: Sequence[BucketLayout], *, ahead: int) -> None:
        self._buckets = buckets
        self._ahead = ahead
        self._arrived = self._departed = len(buckets)
        self._in_progress: list[tuple[dist.Work | None, Tensor]] = []
        self._last_of_module: list[int] = []

    def watch_stage(self, stage: nn.Module) -> None:
        """Register a hook on each module of a stage that waits for the module's weights."""
        last = {
            id(shard.weight): index
            for index, bucket in enumerate(self._buckets)
            for shard in bucket.shards
        }
        tied = getattr(stage, "embedding", None)
        for module in _called(stage):
            # The readout has no weight of its own if it uses the embedding's weight.
            owner = module if list(module.parameters()) else tied
            needed = (
                [last[id(weight)] for weight in owner.parameters() if id(weight) in last]
                if owner
                else []
            )
            if needed:
                self._hook(module, max(needed))

    def _hook(self, module: nn.Module, index: int) -> None:
        self._last_of_module = sorted({*self._last_of_module, index})

        def wait_for_module(*_: object) -> None:
            self.wait_for_weights(index)

        module.register_forward_pre_hook(wait_for_module, prepend=True)

    def start_gathers(self) -> None:
        """Start the gathers of the first buckets; call this after the update."""
        self._arrived = self._departed = 0
        self._fill()
        if not self._ahead:
            self.wait_for_weights()

    def wait_for_weights(self, index: int | None = None) -> None:
        """Wait until all buckets have arrived, or the buckets up to ``index``."""
        end = len(self._buckets) if index is None else index + 1
        while self._arrived < end:
            self._arrive()
            self._fill()

    def _fill(self) -> None:
        """Start the gathers for the next modules; fewer would leave the network idle."""
        coming = (end + 1 for end in self._last_of_module if end >= self._arrived)
        end = max([*islice(coming, self._ahead), self._arrived + max(self._ahead, 1)])
        while self._departed < min(end, len(self._buckets)):
            self._depart(self._buckets[self._departed])
            self._departed += 1

    @torch.no_grad()
    def _depart(self, bucket: BucketLayout) -> None:
        weight = get_local_part(bucket.shards[0].weight)
        if bucket.ranks == 1:
            self._in_progress.append((None, weight))
            return
        mine = weight.new_zeros(1, bucket.num_columns)
        for place, shard in enumerate(bucket.shards):
            bucket.local_rows(mine, place).copy_(shard.parameter)
        everyones = mine.new_empty(bucket.ranks, bucket.num_columns)
        group = bucket.param_mesh.shard.get_group()
        work = collectives.all_gather(everyones, mine, group=group, async_op=True)
        self._in_progress.append((work, everyones))

    @torch.no_grad()
    def _arrive(self) -> None:
        bucket = self._buckets[self._arrived]
        work, everyones = self._in_progress.pop(0)
        if work is not None:
            collectives.wait_for_works([work])
        for place, shard in enumerate(bucket.shards):
            rows = rows_of(get_local_part(shard.weight))
            if bucket.ranks > 1:
                bucket.unpack_rows(everyones, place, rows)
            elif shard.is_master:
                rows.copy_(shard.parameter)
        self._arrived += 1


def _called(stage: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules with calls that run hooks; no two of them share a weight."""
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
