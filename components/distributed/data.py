"""The data axis: what of weights, gradients and optimizer state each data rank keeps (ZeRO).

https://arxiv.org/abs/1910.02054, section 5. Stage 0 keeps everything everywhere; 1 divides the
optimizer's state; 2 the gradients as well, which are summed after every microbatch; 3 also the
weights, which `fully_shard` gathers layer by layer. Where N ranks share a copy of P parameters,
one rank holds between backward pass and update, in numbers:

    stage    weights    gradients    Adam's state
    0        P          P            2 P
    1        P          P / N        2 P / N       (while gradients accumulate: P)
    2        P          P / N        2 P / N
    3        P / N      P / N        2 P / N

With experts over ranks there are two groups of weights: each expert rank has its own experts,
which data and context ranks divide, and all the dense weights, which expert ranks divide too.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from components.distributed import collectives
from components.distributed.mesh import Mesh, ParamGroupMesh
from components.distributed.weight_shards import WeightShard, local, make_shards, rows_of
from components.model.decoder import Decoder
from components.torch_internals.distributed import concatenated


def shard_weights(decoder: Decoder, mesh: Mesh, *, reduce_dtype: torch.dtype) -> None:
    """Let each data rank keep its rows of every weight (ZeRO 3), layer by layer.

    Call it after every other axis has parallelized the decoder; parameters may be on ``meta``.
    """
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    axes = mesh.dense.shard
    if mesh.dense.replicate.size() > 1:
        axes = concatenated([mesh.dense.replicate, axes])
    for layer in decoder.layers.values():
        fully_shard(layer, mesh=axes, mp_policy=policy, reshard_after_forward=True)
    fully_shard(decoder, mesh=axes, mp_policy=policy, reshard_after_forward=True)


class DataParallel:
    """Average gradients over the ranks into the shards, and spread updated rows again.

    Make it when the weights are in their place; ``zero`` is the stage above, ``tied`` names the
    weights that two pipeline stages hold. Sums over ranks are taken in ``reduce_dtype``; sums
    over microbatches are rounded to ``accumulate_dtype``.
    ``expert_divisor`` says what experts' gradients, which hold the tokens of all ranks, are
    divided by: all ``ranks`` for the gradient of the mean loss, or the ``copies`` of an expert
    as Optimus's code does, too little by the number of expert ranks.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        mesh: Mesh,
        *,
        zero: int,
        accumulate_dtype: torch.dtype,
        reduce_dtype: torch.dtype,
        tied: Sequence[str],
        expert_divisor: Literal["ranks", "copies"],
    ) -> None:
        self._mesh = mesh
        self._expert_divisor = expert_divisor
        self._zero = zero
        self._accumulate_dtype = accumulate_dtype
        self._reduce_dtype = reduce_dtype
        self.shards = make_shards(named, mesh, split=zero in {1, 2}, tied=tied)
        for shard in self.shards:
            if zero == 2 or accumulate_dtype != shard.weight.dtype:
                self._hook(shard)

    def zero_grad(self) -> None:
        for shard in self.shards:
            shard.weight.grad = shard.parameter.grad = None

    def reduce(self) -> None:
        """Give every shard the mean over all data ranks; call it after the last microbatch."""
        if self._zero == 3:  # `fully_shard` averaged already
            for shard in self.shards:
                shard.parameter.grad = _gradient(shard)
            return
        # At stage 2 only what no microbatch used is left, and has zeros like any other.
        left = [shard for shard in self.shards if shard.parameter.grad is None]
        for param_mesh in (self._mesh.dense, self._mesh.experts):
            for bucket in collectives.buckets(_of(left, param_mesh)):
                self._reduce(bucket, param_mesh)

    @torch.no_grad()
    def spread(self) -> None:
        """Send the rows that each rank has updated to those that compute with them."""
        if self._zero not in {1, 2}:
            return
        for param_mesh in (self._mesh.dense, self._mesh.experts):
            if param_mesh.shard.size() > 1:
                for bucket in collectives.buckets(_of(self.shards, param_mesh)):
                    _gather_rows(bucket, param_mesh.shard)

    def _hook(self, shard: WeightShard) -> None:
        """Touch a gradient as soon as a microbatch was added to it."""

        @torch.no_grad()
        def added(weight: Tensor) -> None:
            if self._zero == 2:
                self._reduce([shard], shard.param_mesh)
            kept = shard.weight.grad if shard.parameter.grad is None else shard.parameter.grad
            if kept is not None and kept.dtype != self._accumulate_dtype:
                local(kept).copy_(local(kept).to(self._accumulate_dtype))

        hooked: Any = shard.weight
        hooked.register_post_accumulate_grad_hook(added)

    @torch.no_grad()
    def _reduce(self, bucket: Sequence[WeightShard], param_mesh: ParamGroupMesh) -> None:
        """Average the full gradients of a bucket into what its shards keep."""
        splits = self._zero in {1, 2} and param_mesh.shard.size() > 1
        gradients = [_gradient(shard).to(self._reduce_dtype) for shard in bucket]
        if splits:
            sums = _reduce_scattered(gradients, bucket, param_mesh)
        else:
            sums = _all_reduced(gradients, param_mesh)
        divisor = self._divisor(param_mesh)
        for shard, total in zip(bucket, sums, strict=True):
            mean = total.to(shard.parameter.dtype).div_(divisor)
            kept = shard.parameter.grad
            shard.parameter.grad = mean if kept is None else kept.add_(mean)
            shard.weight.grad = None

    def _divisor(self, param_mesh: ParamGroupMesh) -> int:
        copies = param_mesh is self._mesh.experts and self._expert_divisor == "copies"
        return (param_mesh if copies else self._mesh.dense).grad_sync.size()


def _of(shards: Sequence[WeightShard], param_mesh: ParamGroupMesh) -> list[WeightShard]:
    return [shard for shard in shards if shard.param_mesh is param_mesh]


def _all_reduced(gradients: list[Tensor], param_mesh: ParamGroupMesh) -> list[Tensor]:
    if param_mesh.grad_sync.size() == 1:
        return gradients
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together, group=param_mesh.grad_sync.get_group())
    parts = torch.split(together, [gradient.numel() for gradient in gradients])
    return [part.view_as(like) for part, like in zip(parts, gradients, strict=True)]


def _reduce_scattered(
    gradients: list[Tensor], bucket: Sequence[WeightShard], param_mesh: ParamGroupMesh
) -> list[Tensor]:
    lengths = collectives.shard_lengths(bucket, ranks := param_mesh.shard.size())
    packed = torch.cat(collectives.pack(gradients, lengths, ranks), dim=1)
    mine = packed.new_empty(1, packed.shape[1])
    collectives.reduce_scatter(mine, packed, group=param_mesh.shard.get_group())
    if param_mesh.replicate.size() > 1:
        dist.all_reduce(mine, group=param_mesh.replicate.get_group())
    return collectives.unpack(mine, [shard.parameter for shard in bucket], lengths)


def _gather_rows(bucket: Sequence[WeightShard], sharding: DeviceMesh) -> None:
    lengths = collectives.shard_lengths(bucket, sharding.size())
    mine = torch.cat(collectives.pack([shard.parameter for shard in bucket], lengths, 1), dim=1)
    everyones = mine.new_empty(sharding.size(), mine.numel())
    collectives.all_gather(everyones, mine, group=sharding.get_group())
    weights = [rows_of(local(shard.weight)) for shard in bucket]
    updated = collectives.unpack(everyones, weights, lengths)
    for weight, rows in zip(weights, updated, strict=True):
        weight.copy_(rows)


def _gradient(shard: WeightShard) -> Tensor:
    """Return what the backward pass left on this rank; a weight that nobody used has zeros."""
    gradient = shard.weight.grad
    found = torch.zeros_like(local(shard.weight)) if gradient is None else local(gradient)
    return rows_of(found)
