"""Data axis (ZeRO): the weights, gradients and optimizer state of each data rank.

https://arxiv.org/abs/1910.02054, section 5. Stage 0 replicates everything. Stage 1 shards the
optimizer state. Stage 2 also shards the gradients and averages them after every microbatch.
Stage 3 also shards the weights, which `fully_shard` gathers layer by layer. If N ranks share a
copy of P parameters, one rank has between backward pass and update, in numbers:

    stage    weights    gradients    masters, and Adam's state
    0        P          P            P, 2 P
    1        P          P / N        P / N, 2 P / N       (gradients while they add up: P)
    2        P          P / N        P / N, 2 P / N       (the same: P / N and some buckets)
    3        P / N      P / N        none, 2 P / N        (weights in use: a layer or two)

Weights have the dtype of products, and masters are float32; float32 products need no masters.
Data and context ranks shard each expert rank's own experts. Dense weights are sharded over
expert ranks too. Gradients are reduced during the backward pass of the last microbatch, bucket
by bucket. Updated weights arrive during the next forward pass.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from components.distributed.devices import StateDtypes
from components.distributed.grad_buckets import (
    GRADS_AHEAD,
    BucketQueue,
    GradBucket,
    build_buckets,
)
from components.distributed.mesh import Mesh, ParamGroupMesh
from components.distributed.weight_gather import WEIGHTS_AHEAD, WeightGather
from components.distributed.weight_shards import (
    WeightShard,
    get_local_part,
    make_shards,
    rows_of,
)
from components.model.decoder import Decoder
from components.torch_internals.distributed import concatenate_meshes


def shard_weights(decoder: Decoder, mesh: Mesh, *, dtypes: StateDtypes) -> None:
    """Shard every weight over the data ranks by rows (ZeRO 3), layer by layer.

    Weights are gathered in their compute dtype. The last layer, the final norm and the head
    stay gathered, because the backward pass starts with them. Call this after every other axis
    has parallelized the decoder. Parameters may be on ``meta``.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=dtypes.weights if dtypes.weights != dtypes.master else None,
        reduce_dtype=dtypes.reduce,
        cast_forward_inputs=False,  # autocast chooses
    )
    axes = mesh.dense.shard
    if mesh.dense.replicate.size() > 1:
        axes = concatenate_meshes([mesh.dense.replicate, axes])
    shard = partial(fully_shard, mesh=axes, mp_policy=policy)
    layers = list(decoder.layers.values())
    if decoder.embedding is not None and decoder.head is not None and decoder.mtp is None:
        shard(decoder.embedding, reshard_after_forward=True)
    for layer in layers:
        shard(layer, reshard_after_forward=layer is not layers[-1])
    for depth in decoder.mtp.values() if decoder.mtp is not None else ():
        shard(depth, reshard_after_forward=False)
    shard(decoder, reshard_after_forward=False)


class DataParallel:
    """Data parallelism: average gradients into shards, and gather updated rows.

    Create it when the ``stages`` have their weights in the masters' dtype; it rounds them.
    ``zero`` is the ZeRO stage. ``tied`` names weights of two stages on different ranks. A
    bucket has up to ``bucket_elements`` numbers, or one larger weight. Without ``overlap``
    buckets are reduced after the last microbatch and gathered before the next step. Experts'
    gradients sum over the tokens of all ranks; ``expert_grad_average`` divides the sum.
    ``ranks`` gives the gradient of the mean loss. ``replicas`` divides by the replicas of an
    expert, like Optimus's code: too large by the number of expert ranks.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        mesh: Mesh,
        *,
        zero: int,
        dtypes: StateDtypes,
        tied: Sequence[str] = (),
        expert_grad_average: Literal["ranks", "replicas"] = "ranks",
        bucket_elements: int,
        overlap: bool,
    ) -> None:
        self._mesh = mesh
        self.buffers = {
            name: buffer for stage in stages for name, buffer in stage.named_buffers()
        }
        self._expert_grad_average = expert_grad_average
        self._zero = zero
        parts = (part for stage in stages for part in stage.modules())
        self._sharded = [part for part in parts if isinstance(part, FSDPModule)]
        self._dtypes = dtypes
        self._overlap = overlap
        weights = dtypes.master if zero == 3 else dtypes.weights
        split = zero in {1, 2}
        by_stage = make_shards(stages, mesh, split=split, weights=weights, tied=tied)
        self.shards = [shard for shards in by_stage for shard in shards]
        self._places: dict[int, tuple[BucketQueue, GradBucket, int]] = {}
        self._queues: list[BucketQueue] = []
        self._gather = WeightGather([], ahead=0)
        if zero < 3:
            self._make_buckets(stages, by_stage, bucket_elements)
            _check_alike(self._places.values(), mesh)
        for shard in self.shards:
            self._hook(shard)

    def _make_buckets(
        self, stages: Sequence[nn.Module], by_stage: list[list[WeightShard]], limit: int
    ) -> None:
        """Create each stage's bucket queue, and the weight gather in the opposite order."""
        uses = Counter(id(weight) for stage in stages for weight in stage.parameters())
        ahead = GRADS_AHEAD if self._zero == 2 else len(self.shards)
        # At stage 2 a bucket contains only one microbatch.
        first = self._dtypes.reduce if self._zero == 2 else self._dtypes.accumulate
        dtypes = self._dtypes._replace(accumulate=first)
        forward = []
        for shards in by_stage:
            layouts = build_buckets(shards[::-1], limit)
            forward += layouts[::-1]
            buckets = [
                GradBucket(layout, dtypes=dtypes, divisor=self._divisor(layout.param_mesh))
                for layout in layouts
                if self._is_bucketed(layout.param_mesh)
            ]
            queue = BucketQueue(
                buckets,
                uses=lambda shard: uses[id(shard.weight)],
                ahead=ahead if self._overlap else 0,
                recurs=self._zero == 2,
                on_mean=self._keep_mean,
            )
            self._queues.append(queue)
            for bucket in buckets:
                for place, shard in enumerate(bucket.layout.shards):
                    self._places[id(shard.weight)] = queue, bucket, place
        wanted = [
            layout for layout in forward if layout.ranks > 1 or layout.shards[0].is_master
        ]
        self._gather = WeightGather(wanted, ahead=WEIGHTS_AHEAD if self._overlap else 0)
        for stage in stages:
            self._gather.watch_stage(stage)

    def _is_bucketed(self, param_mesh: ParamGroupMesh) -> bool:
        """Return whether gradients need more than autograd's own accumulation."""
        dtypes = self._dtypes
        alone = param_mesh.grad_sync.size() == 1 and self._divisor(param_mesh) == 1
        return not alone or len({dtypes.weights, dtypes.accumulate, dtypes.master}) > 1

    @property
    def stage_ranks(self) -> DeviceMesh:
        """Ranks with copies of a stage's buffers, even if its weights are sharded."""
        return self._mesh.dense.grad_sync

    def start_step(self, microbatches: int) -> None:
        """Clear the previous step's gradients and expect ``microbatches``."""
        for shard in self.shards:
            shard.weight.grad = shard.parameter.grad = None
        times = 1 if self._zero == 2 else microbatches * self._overlap
        for queue in self._queues:
            queue.start_passes(times)

    @torch.no_grad()
    def collect_gradient(self, weight: Tensor) -> None:
        """Move a weight's gradient into its bucket, or round it to ``accumulate``."""
        gradient = weight.grad
        if gradient is None:
            return
        if (location := self._places.get(id(weight))) is not None:
            weight.grad = None
            queue, bucket, place = location
            queue.add_gradient(bucket, place, rows_of(get_local_part(gradient)))
        elif gradient.dtype != self._dtypes.accumulate:
            _round(get_local_part(gradient), self._dtypes.accumulate)

    def reduce_gradients(self) -> None:
        """Average every shard's gradient over data ranks, after the last microbatch."""
        # Without this wait, a weight update that no module waited for would be lost.
        self.wait_for_weights()
        for queue in self._queues:
            queue.finish_reduce()
        for shard in self.shards:
            if id(shard.weight) not in self._places:  # `fully_shard` averaged, or one rank
                shard.parameter.grad = _gradient(shard)

    def all_gather_updated(self) -> None:
        """Start the all-gather of the rows that each rank has updated."""
        self._gather.start_gathers()

    def free_gathered(self) -> None:
        """Free gathered weights, which `fully_shard` keeps for a backward pass (ZeRO 3)."""
        for part in self._sharded:
            part.reshard()

    def wait_for_weights(self) -> None:
        """Wait until every weight has its update; call this before reading weights."""
        self._gather.wait_for_weights()

    def gradient_buffers(self) -> Iterator[Tensor]:
        """Return the current sums of the buckets."""
        buckets = dict.fromkeys(bucket for _, bucket, _ in self._places.values())
        return (bucket.sums for bucket in buckets if bucket.sums is not None)

    def _hook(self, shard: WeightShard) -> None:
        hooked: Any = shard.weight
        rounds = self._dtypes.accumulate != shard.weight.dtype
        if id(shard.weight) in self._places or rounds:
            hooked.register_post_accumulate_grad_hook(self.collect_gradient)

    def _keep_mean(self, shard: WeightShard, mean: Tensor) -> None:
        gradient = shard.parameter.grad
        shard.parameter.grad = mean if gradient is None else gradient.add_(mean)
        if self._zero == 2 and self._dtypes.accumulate != mean.dtype:
            _round(shard.parameter.grad, self._dtypes.accumulate)

    def _divisor(self, param_mesh: ParamGroupMesh) -> int:
        by_replicas = (
            param_mesh is self._mesh.experts and self._expert_grad_average == "replicas"
        )
        return (param_mesh if by_replicas else self._mesh.dense).grad_sync.size()


def _round(numbers: Tensor, dtype: torch.dtype) -> None:
    numbers.copy_(numbers.to(dtype))


def _gradient(shard: WeightShard) -> Tensor:
    """Return this rank's gradient as rows, or zeros for an unused weight."""
    gradient = shard.weight.grad
    mine = (
        torch.zeros_like(get_local_part(shard.weight))
        if gradient is None
        else get_local_part(gradient)
    )
    return rows_of(mine)


def _check_alike(buckets: Iterable[tuple[BucketQueue, GradBucket, int]], mesh: Mesh) -> None:
    """Assert that all ranks of a stage's dense weights have the same buckets, in order."""
    group = mesh.dense.grad_sync
    if group.size() == 1:
        return
    layouts = dict.fromkeys(bucket.layout for _, bucket, _ in buckets)
    description = repr([
        ([s.name for s in layout.shards], layout.num_elements) for layout in layouts
    ])
    number = int.from_bytes(blake2b(description.encode(), digest_size=7).digest())
    both = torch.tensor([number, -number], device=group.device_type)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group.get_group())
    assert both[0] == -both[1], "ranks would reduce other buckets than their neighbours"
