"""The data axis: what of weights, gradients and optimizer state each data rank keeps (ZeRO).

https://arxiv.org/abs/1910.02054, section 5. Stage 0 keeps everything everywhere; 1 divides the
optimizer's state; 2 the gradients as well, which are averaged after every microbatch; 3 also
the weights, which `fully_shard` gathers layer by layer. Where N ranks share a copy of P
parameters, one rank holds between backward pass and update, in numbers:

    stage    weights    gradients    masters, and Adam's state
    0        P          P            P, 2 P
    1        P          P / N        P / N, 2 P / N       (gradients while they add up: P)
    2        P          P / N        P / N, 2 P / N       (the same: P / N and some buckets)
    3        P / N      P / N        none, 2 P / N        (weights in use: a layer or two)

Weights are in the products' dtype, and masters in float32; where products are in float32 too
there are no masters. With experts over ranks there are two groups of weights: each expert rank
has its own experts, which data and context ranks divide, and all the dense weights, which
expert ranks divide too.

Gradients leave from the backward pass of the last microbatch, bucket by bucket, and updated
weights come under the next forward pass.
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
from components.distributed.grad_buckets import GRADS_AHEAD, BucketQueue, GradBucket, bucketed
from components.distributed.mesh import Mesh, ParamGroupMesh
from components.distributed.weight_gather import WEIGHTS_AHEAD, WeightGather
from components.distributed.weight_shards import WeightShard, local, make_shards, rows_of
from components.model.decoder import Decoder
from components.torch_internals.distributed import concatenated


def shard_weights(decoder: Decoder, mesh: Mesh, *, dtypes: StateDtypes) -> None:
    """Let each data rank keep its rows of every weight (ZeRO 3), layer by layer.

    Weights are gathered in the dtype in which they compute. The last layer, the norm after it
    and the head stay gathered: the backward pass begins with them. Call it after every other
    axis has parallelized the decoder; parameters may be on ``meta``.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=dtypes.weights if dtypes.weights != dtypes.master else None,
        reduce_dtype=dtypes.reduce,
        cast_forward_inputs=False,  # autocast chooses
    )
    axes = mesh.dense.shard
    if mesh.dense.replicate.size() > 1:
        axes = concatenated([mesh.dense.replicate, axes])
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
    """Average gradients over the ranks into the shards, and spread updated rows again.

    Make it when the ``stages`` have their weights, in the dtype of the masters; it rounds them.
    ``zero`` is the stage above, ``tied`` names the weights that two pipeline stages hold on
    ranks of their own. A bucket has up to ``bucket_elements`` numbers, or one larger weight;
    without ``overlap`` buckets leave after the last microbatch and come before the next step.
    ``expert_divisor`` says what experts' gradients, which hold the tokens of all ranks, are
    divided by: all ``ranks`` for the gradient of the mean loss, or the ``copies`` of an expert
    as Optimus's code does, too little by the number of expert ranks.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        mesh: Mesh,
        *,
        zero: int,
        dtypes: StateDtypes,
        tied: Sequence[str] = (),
        expert_divisor: Literal["ranks", "copies"] = "ranks",
        bucket_elements: int,
        overlap: bool,
    ) -> None:
        self._mesh = mesh
        self.buffers = {name: one for stage in stages for name, one in stage.named_buffers()}
        self._expert_divisor = expert_divisor
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
        """Make each stage's queue, and gather in the opposite order."""
        uses = Counter(id(weight) for stage in stages for weight in stage.parameters())
        ahead = GRADS_AHEAD if self._zero == 2 else len(self.shards)
        # At stage 2 nothing adds up before it leaves.
        first = self._dtypes.reduce if self._zero == 2 else self._dtypes.accumulate
        dtypes = self._dtypes._replace(accumulate=first)
        forward = []
        for shards in by_stage:
            layouts = bucketed(shards[::-1], limit)
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
                give=self._give,
            )
            self._queues.append(queue)
            for bucket in buckets:
                for place, shard in enumerate(bucket.layout.shards):
                    self._places[id(shard.weight)] = queue, bucket, place
        wanted = [one for one in forward if one.ranks > 1 or one.shards[0].is_master]
        self._gather = WeightGather(wanted, ahead=WEIGHTS_AHEAD if self._overlap else 0)
        for stage in stages:
            self._gather.watch(stage)

    def _is_bucketed(self, param_mesh: ParamGroupMesh) -> bool:
        """Whether gradients need more than the sums that autograd takes by itself."""
        dtypes = self._dtypes
        alone = param_mesh.grad_sync.size() == 1 and self._divisor(param_mesh) == 1
        return not alone or len({dtypes.weights, dtypes.accumulate, dtypes.master}) > 1

    @property
    def stage_ranks(self) -> DeviceMesh:
        """The ranks that hold a stage's buffers alike, whatever divides its weights."""
        return self._mesh.dense.grad_sync

    def begin(self, microbatches: int) -> None:
        """Forget the gradients of the step before; so many microbatches come."""
        for shard in self.shards:
            shard.weight.grad = shard.parameter.grad = None
        times = 1 if self._zero == 2 else microbatches * self._overlap
        for queue in self._queues:
            queue.begin(times)

    @torch.no_grad()
    def take(self, weight: Tensor) -> None:
        """Move what a backward pass has left at a weight to where it adds up."""
        gradient = weight.grad
        if gradient is None:
            return
        if (found := self._places.get(id(weight))) is not None:
            weight.grad = None
            queue, bucket, place = found
            queue.add(bucket, place, rows_of(local(gradient)))
        elif gradient.dtype != self._dtypes.accumulate:
            _round(local(gradient), self._dtypes.accumulate)

    def reduce(self) -> None:
        """Give every shard the mean over all data ranks; call it after the last microbatch."""
        self.settle()  # of a weight that no module has waited for an update would be lost
        for queue in self._queues:
            queue.end()
        for shard in self.shards:
            if id(shard.weight) not in self._places:  # `fully_shard` averaged, or one rank
                shard.parameter.grad = _gradient(shard)

    def spread(self) -> None:
        """Begin to send the rows that each rank has updated to those that compute with them."""
        self._gather.begin()

    def reshard(self) -> None:
        """Let go of gathered weights, which are kept for a backward pass (ZeRO 3)."""
        for part in self._sharded:
            part.reshard()

    def settle(self) -> None:
        """Wait until every weight has its update; reading one before is too early."""
        self._gather.settle()

    def gradient_buffers(self) -> Iterator[Tensor]:
        """Give the sums that lie in buckets now."""
        buckets = dict.fromkeys(bucket for _, bucket, _ in self._places.values())
        return (bucket.sums for bucket in buckets if bucket.sums is not None)

    def _hook(self, shard: WeightShard) -> None:
        hooked: Any = shard.weight
        rounds = self._dtypes.accumulate != shard.weight.dtype
        if id(shard.weight) in self._places or rounds:
            hooked.register_post_accumulate_grad_hook(self.take)

    def _give(self, shard: WeightShard, mean: Tensor) -> None:
        kept = shard.parameter.grad
        shard.parameter.grad = mean if kept is None else kept.add_(mean)
        if self._zero == 2 and self._dtypes.accumulate != mean.dtype:
            _round(shard.parameter.grad, self._dtypes.accumulate)

    def _divisor(self, param_mesh: ParamGroupMesh) -> int:
        copies = param_mesh is self._mesh.experts and self._expert_divisor == "copies"
        return (param_mesh if copies else self._mesh.dense).grad_sync.size()


def _round(numbers: Tensor, dtype: torch.dtype) -> None:
    numbers.copy_(numbers.to(dtype))


def _gradient(shard: WeightShard) -> Tensor:
    """Return what the backward pass left on this rank; a weight that nobody used has zeros."""
    gradient = shard.weight.grad
    found = torch.zeros_like(local(shard.weight)) if gradient is None else local(gradient)
    return rows_of(found)


def _check_alike(buckets: Iterable[tuple[BucketQueue, GradBucket, int]], mesh: Mesh) -> None:
    """Assert that all ranks of a stage's dense weights made the same buckets in one order."""
    group = mesh.dense.grad_sync
    if group.size() == 1:
        return
    layouts = dict.fromkeys(bucket.layout for _, bucket, _ in buckets)
    told = repr([([s.name for s in one.shards], one.numel) for one in layouts])
    number = int.from_bytes(blake2b(told.encode(), digest_size=7).digest())
    both = torch.tensor([number, -number], device=group.device_type)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group.get_group())
    assert both[0] == -both[1], "ranks would reduce other buckets than their neighbours"
