"""Norms, dropout and seeds under tensor parallelism, where a rank has part of a tensor.

All tensor ranks seed torch's generators with the same value for every microbatch. Dropout of a
replicated tensor is the same on all ranks. Dropout of a split tensor differs between ranks.
"""

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from typing_extensions import override

from components.distributed.collectives import start_all_reduce
from components.distributed.local_parameters import place_parameters, to_local
from components.model.attention import AttentionContext, AttentionCore
from components.model.checkpoint_storage import compute_once
from components.model.decoder import Decoder
from components.model.layer import collect_layers
from components.model.norms import Norm
from components.torch_internals.operators import in_backward


class TensorParallelNorm(nn.Module):
    """Norm of vectors that are split over ranks; the result equals ``Norm`` of the whole."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, norm: Norm, mesh: DeviceMesh, *, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.eps = norm.eps
        self.center = norm.center
        self.weight = norm.weight
        self.bias = norm.bias
        self._group = mesh.get_group()
        place_parameters(self, mesh, Shard(0))

    def forward(self, part: Float[Tensor, "*batch part"]) -> Float[Tensor, "*batch part"]:
        wide = part.to(torch.promote_types(part.dtype, torch.float32))
        if self.center:
            wide = wide - self._mean(wide)
        wide = wide * torch.rsqrt(self._mean(wide.square()) + self.eps)
        if self.weight is not None:
            wide = wide * to_local(cast("DTensor", self.weight))
        if self.bias is not None:
            wide = wide + to_local(cast("DTensor", self.bias))
        return wide.type_as(part)

    def _mean(self, part: Tensor) -> Tensor:
        return sum_over(part.sum(-1, keepdim=True), self._group) / self.dim


def sum_over(share: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sum over the ranks. Each rank uses the sum separately, so gradients are summed too."""
    apply: Callable[..., Tensor] = _SumOverRanks.apply
    return apply(share, group)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return compute_once(lambda: start_all_reduce(share, group=group, at_once=True)[0])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return start_all_reduce(upstream[0], group=ctx.group, at_once=True)[0], None


def stream_seed(seed: int, mesh: DeviceMesh, *, sequence_parallel: bool) -> int:
    """Return this rank's seed: the shared ``seed``, or a distinct one for distinct tokens."""
    return _folded(seed, mesh.get_local_rank()) if sequence_parallel else seed


def seed_layers(decoder: Decoder, seed_of: Callable[[str], int]) -> None:
    """Seed torch's generators before each layer, so that dropout masks do not depend on stages.

    ``seed_of`` maps a layer's name or ``embedding`` to its seed in the current microbatch.
    Activation checkpointing restores the generators itself when it recomputes a layer.
    """
    if not _drops(decoder):
        return

    def seed_layer(name: str, part: nn.Module, inputs: Any) -> None:
        if not in_backward():
            torch.manual_seed(seed_of(name))

    for name, part in [("embedding", decoder), *collect_layers(decoder).items()]:
        part.register_forward_pre_hook(partial(seed_layer, name), prepend=True)


def _drops(decoder: Decoder) -> bool:
    """Return whether the model has dropout; seeding costs host time in every layer."""
    return any(
        (isinstance(part, nn.Dropout) and part.p > 0)
        or (isinstance(part, AttentionCore) and part.dropout > 0)
        for part in decoder.modules()
    )


class TensorParallelAttention(AttentionCore):
    """Attention core with this rank's own dropout stream, because its heads are distinct."""

    def __init__(self, core: AttentionCore, mesh: DeviceMesh, *, layer: int) -> None:
        super().__init__(dropout=core.dropout, backends=core.backends, has_sinks=core.has_sinks)
        self.core = core
        self.is_fullgraph = core.is_fullgraph and core.dropout == 0  # `forward` seeds otherwise
        self._place = mesh.get_local_rank(), layer

    @override
    def prepare_masks(self, hidden: Tensor, scope: AttentionContext, *, head_dim: int) -> None:
        self.core.prepare_masks(hidden, scope, head_dim=head_dim)

    @override
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scope: AttentionContext,
        *,
        first_head: int,
        sinks: Tensor | None = None,
    ) -> Tensor:
        attend = partial(
            self.core, query, key, value, scope, first_head=first_head, sinks=sinks
        )
        if not self.training or self.dropout == 0:
            return cast("Tensor", attend())
        device = query.device
        devices = [] if device.type == "cpu" else [device]
        kind = "cuda" if device.type == "cpu" else device.type  # unused without devices
        with torch.random.fork_rng(devices, device_type=kind):
            torch.manual_seed(_folded(torch.initial_seed(), *self._place))
            return cast("Tensor", attend())


def _folded(*place: int) -> int:
    return int.from_bytes(blake2b(repr(place).encode(), digest_size=7).digest())
