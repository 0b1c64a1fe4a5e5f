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
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from components.model.decoder import Decoder
from components.parallelism.buckets import (
    all_gather,
    buckets,
    pack,
    piece_lengths,
    reduce_scatter,
    unpack,
)
from components.parallelism.mesh import Mesh
from components.parallelism.shards import WeightShard, local, make_shards


def shard_weights(decoder: Decoder, mesh: Mesh, *, reduce_dtype: torch.dtype) -> None:
    """Let each data rank keep its rows of every weight (ZeRO 3), layer by layer.

    Call it after everything else is poured over the decoder; parameters may be on ``meta``.
    """
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    replicated = mesh.degrees.data_replicate > 1
    axes = mesh.root["data_replicate", "data_shard"] if replicated else mesh.axis("data_shard")
    for layer in decoder.layers.values():
        fully_shard(layer, mesh=axes, mp_policy=policy, reshard_after_forward=True)
    fully_shard(decoder, mesh=axes, mp_policy=policy, reshard_after_forward=True)


class DataParallel:
    """Average gradients over the data ranks into the shards, and spread updated rows again.

    Make it when the weights are in their place; ``zero`` is the stage above, ``tied`` names the
    weights that two pipeline stages hold. Sums over ranks are taken in ``reduce_dtype``. Sums
    over microbatches are as exact as ``accumulate_dtype``, as in engines that keep them in it;
    only their values are rounded.
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
    ) -> None:
        self._mesh = mesh
        self._zero = zero
        self._accumulate_dtype = accumulate_dtype
        self._reduce_dtype = reduce_dtype
        self._splits = zero in {1, 2} and mesh.degrees.data_shard > 1
        self.shards = make_shards(named, mesh, split=self._splits, tied=tied)
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
        for bucket in buckets(left):
            self._reduce(bucket)

    @torch.no_grad()
    def spread(self) -> None:
        """Send the rows that each rank has updated to those that compute with them."""
        if not self._splits:
            return
        pieces, group = self._mesh.degrees.data_shard, self._mesh.axis("data_shard").get_group()
        for bucket in buckets(self.shards):
            lengths = piece_lengths(bucket, pieces)
            mine = torch.cat(pack([shard.parameter for shard in bucket], lengths, 1), dim=1)
            everyones = mine.new_empty(pieces, mine.numel())
            all_gather(everyones, mine, group=group)
            weights = [local(shard.weight) for shard in bucket]
            for weight, rows in zip(weights, unpack(everyones, weights, lengths), strict=True):
                weight.copy_(rows)

    def _hook(self, shard: WeightShard) -> None:
        """Touch a gradient as soon as a microbatch was added to it."""

        @torch.no_grad()
        def added(weight: Tensor) -> None:
            if self._zero == 2:
                self._reduce([shard])
            kept = shard.weight.grad if shard.parameter.grad is None else shard.parameter.grad
            if kept is not None and kept.dtype != self._accumulate_dtype:
                local(kept).copy_(local(kept).to(self._accumulate_dtype))

        hooked: Any = shard.weight
        hooked.register_post_accumulate_grad_hook(added)

    @torch.no_grad()
    def _reduce(self, bucket: Sequence[WeightShard]) -> None:
        """Average the full gradients of a bucket into what its shards keep."""
        sums = self._scattered(bucket) if self._splits else self._summed(bucket)
        for shard, total in zip(bucket, sums, strict=True):
            mean = total.to(shard.parameter.dtype).div_(self._mesh.data_ranks)
            kept = shard.parameter.grad
            shard.parameter.grad = mean if kept is None else kept.add_(mean)
            shard.weight.grad = None

    def _summed(self, bucket: Sequence[WeightShard]) -> list[Tensor]:
        sums = [_gradient(shard).to(self._reduce_dtype) for shard in bucket]
        if self._mesh.data_ranks == 1:
            return sums
        together = torch.cat([total.flatten() for total in sums])
        dist.all_reduce(together, group=self._mesh.data_group)
        parts = torch.split(together, [total.numel() for total in sums])
        return [part.view_as(total) for part, total in zip(parts, sums, strict=True)]

    def _scattered(self, bucket: Sequence[WeightShard]) -> list[Tensor]:
        pieces = self._mesh.degrees.data_shard
        lengths = piece_lengths(bucket, pieces)
        gradients = [_gradient(shard).to(self._reduce_dtype) for shard in bucket]
        packed = torch.cat(pack(gradients, lengths, pieces), dim=1)
        mine = packed.new_empty(1, packed.shape[1])
        group = self._mesh.axis("data_shard").get_group()
        reduce_scatter(mine, packed, group=group)
        if self._mesh.degrees.data_replicate > 1:
            dist.all_reduce(mine, group=self._mesh.axis("data_replicate").get_group())
        return unpack(mine, [shard.parameter for shard in bucket], lengths)


def _gradient(shard: WeightShard) -> Tensor:
    """Return what the backward pass left on this rank; a weight that nobody used has zeros."""
    gradient = shard.weight.grad
    return torch.zeros_like(local(shard.weight)) if gradient is None else local(gradient)
