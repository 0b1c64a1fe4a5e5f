"""Parts of a decoder on one tensor rank's share: norms over all ranks' parts, dropout, seeds.

Torch's generators are seeded alike on all tensor ranks, anew for every microbatch. What ranks
hold whole they drop alike (dropout); what each holds a part of, each in its own way.
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
from torch.distributed.tensor import (
    DTensor,
    Shard,
)
from typing_extensions import override

from components.distributed.collectives import start_all_reduce
from components.distributed.tensor_lending import part_of, place_parameters
from components.model.attention import AttentionCore, ForwardScope
from components.model.decoder import Decoder
from components.model.kept import kept
from components.model.layer import collect_layers
from components.model.norms import Norm
from components.torch_internals.operators import in_backward


class SplitNorm(nn.Module):
    """Normalize vectors of which each rank holds a part, as ``Norm`` does the whole."""

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
            wide = wide * part_of(cast("DTensor", self.weight))
        if self.bias is not None:
            wide = wide + part_of(cast("DTensor", self.bias))
        return wide.type_as(part)

    def _mean(self, part: Tensor) -> Tensor:
        return sum_over(part.sum(-1, keepdim=True), self._group) / self.dim


def sum_over(share: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Add up over the ranks; each then uses the sum for itself, so gradients add up as well."""
    apply: Callable[..., Tensor] = _SumOverRanks.apply
    return apply(share, group)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return kept(lambda: start_all_reduce(share, group=group, at_once=True)[0])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return start_all_reduce(upstream[0], group=ctx.group, at_once=True)[0], None


def stream_seed(seed: int, mesh: DeviceMesh, *, sequence_parallel: bool) -> int:
    """Return this rank's seed for one that all share: another where it holds other tokens."""
    return _folded(seed, mesh.get_local_rank()) if sequence_parallel else seed


def seed_layers(decoder: Decoder, seed_of: Callable[[str], int]) -> None:
    """Seed torch's generators before each layer, so that masks do not depend on the stages.

    ``seed_of`` gives a part's seed in the microbatch at hand, that of a layer by its name or of
    the ``embedding``; activation checkpointing itself puts back the generators of a layer that
    it repeats. A model without dropout draws nothing, and is not seeded.
    """
    if not _drops(decoder):
        return

    def seed(name: str, part: nn.Module, inputs: Any) -> None:
        if not in_backward():
            torch.manual_seed(seed_of(name))

    for name, part in [("embedding", decoder), *collect_layers(decoder).items()]:
        part.register_forward_pre_hook(partial(seed, name), prepend=True)


def _drops(decoder: Decoder) -> bool:
    """Whether training drops any number: seeding takes the host time in every layer."""
    return any(
        (isinstance(part, nn.Dropout) and part.p > 0)
        or (isinstance(part, AttentionCore) and part.dropout > 0)
        for part in decoder.modules()
    )


class SplitCore(AttentionCore):
    """Drop attention weights from a stream of this rank's own: its heads are no other's."""

    def __init__(self, core: AttentionCore, mesh: DeviceMesh, *, layer: int) -> None:
        super().__init__(dropout=core.dropout, backends=core.backends)
        self.core = core
        self.in_one_graph = core.in_one_graph and core.dropout == 0  # else it seeds by itself
        self._place = mesh.get_local_rank(), layer

    @override
    def prepare(self, hidden: Tensor, scope: ForwardScope, *, head_dim: int) -> None:
        self.core.prepare(hidden, scope, head_dim=head_dim)

    @override
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scope: ForwardScope, *, first_head: int
    ) -> Tensor:
        given = query, key, value, scope
        if not self.training or self.dropout == 0:
            return cast("Tensor", self.core(*given, first_head=first_head))
        device = query.device
        devices = [] if device.type == "cpu" else [device]
        kind = "cuda" if device.type == "cpu" else device.type  # unused where there are none
        with torch.random.fork_rng(devices, device_type=kind):
            torch.manual_seed(_folded(torch.initial_seed(), *self._place))
            return cast("Tensor", self.core(*given, first_head=first_head))


def _folded(*place: int) -> int:
    return int.from_bytes(blake2b(repr(place).encode(), digest_size=7).digest())
