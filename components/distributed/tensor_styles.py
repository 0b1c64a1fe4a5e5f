"""Tensor-parallel styles: how parts of a decoder compute on one rank's share.

Parameters are DTensors; what a rank computes by itself it computes on plain tensors. Torch's
own styles send every product through DTensor's dispatch, which takes longer than a small one.

Torch's generators are seeded alike on all tensor ranks, anew for every microbatch. What ranks
hold whole they drop alike (dropout); what each holds a part of, each in its own way.
"""

from collections.abc import Callable, Sequence
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
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from typing_extensions import override

from components.model.attention import AttentionCore, ForwardScope
from components.model.decoder import Decoder
from components.model.kept import kept, passing_on
from components.model.norms import Norm
from components.torch_internals.operators import in_backward


def place_parameters(
    module: nn.Module, mesh: DeviceMesh, placement: Placement, **others: Placement
) -> None:
    """Make the module's own parameters DTensors, all but those named in ``others`` alike.

    Every rank must hold the same values.
    """
    for name, whole in list(module.named_parameters(recurse=False)):
        placements = [others.get(name, placement)]
        placed = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        module.register_parameter(name, nn.Parameter(placed, requires_grad=whole.requires_grad))


def share_input(module: nn.Module, mesh: DeviceMesh, between: Placement) -> None:
    """Give a block its input whole, once for all maps that read it.

    It comes in as hidden states travel, ``Shard(1)`` or ``Replicate()``. Gradients of it are
    each rank's share; the backward pass adds them up and hands on what came in.
    """
    # Within the forward pass, not before it: who computes the block again for its backward
    # pass keeps what came in, and gathers again.
    forward: Any = module.forward

    def share(hidden: Tensor, *others: Any) -> Any:
        placed = DTensor.from_local(hidden, mesh, [between], run_check=False)
        whole = placed.redistribute(placements=[Replicate()])
        return forward(whole.to_local(grad_placements=[Partial()]), *others)

    vars(module)["forward"] = share


def split_columns(module: nn.Module, mesh: DeviceMesh) -> None:
    """Compute this rank's part of a linear map's outputs, from the whole input."""
    place_parameters(module, mesh, Shard(0))
    lend(module, lambda name, parameter: parameter.to_local())


def split_rows(module: nn.Module, mesh: DeviceMesh, between: Placement) -> None:
    """Compute a linear map of this rank's part of the input, and add what all ranks have.

    The sum goes out as hidden states travel, ``Shard(1)`` or ``Replicate()``. The bias is added
    after it: once, and to a slice where there are slices, so that its gradient is a share.
    """
    place_parameters(module, mesh, Replicate(), weight=Shard(1))
    lend(module, lambda name, part: part.to_local() if name == "weight" else None)
    multiply: Any = module.forward

    def add(part: Tensor) -> Tensor:
        mine = passing_on(multiply(part))
        share = DTensor.from_local(mine, mesh, [Partial()], run_check=False)
        total: Tensor = share.redistribute(placements=[between]).to_local()
        if module.bias is None:
            return total
        bias = cast("DTensor", module.bias)
        here = _share(bias) if between.is_shard() else bias.to_local()
        return total + here.type_as(total)

    vars(module)["forward"] = add


def replicate_parameters(
    module: nn.Module, mesh: DeviceMesh, *, sum_gradients: bool, rows: slice = slice(None)
) -> None:
    """Let a module compute, by its own forward pass, on whole parameters as plain tensors.

    With ``sum_gradients`` each rank's gradient is its share of the whole, and the backward pass
    adds the shares up; without, every rank computes the same. ``rows``, of all the parameters,
    are what this rank reads.
    """
    place_parameters(module, mesh, Replicate())

    def own_rows(name: str, parameter: DTensor) -> Tensor:
        return (_share(parameter) if sum_gradients else parameter.to_local())[rows]

    lend(module, own_rows)


def _share(parameter: DTensor) -> Tensor:
    """Lend a replicated parameter of which each rank's gradient is a share of the whole."""
    whole = parameter.redistribute(placements=[Replicate()])
    return whole.to_local(grad_placements=[Partial()])


def lend(
    module: nn.Module,
    plain: Callable[[str, DTensor], Tensor | None],
    owners: Sequence[nn.Module] | None = None,
) -> None:
    """Let the forward pass of ``module`` read plain tensors where its parameters stand.

    ``owners`` have the parameters where it is not the module itself. Not by hooks, whose own
    numbers in each layer would give each a graph of torch's compiler.
    """
    forward: Any = module.forward

    def lent(*given: Any) -> Any:
        placed = [
            (vars(owner), name, cast("DTensor", parameter))
            for owner in owners or [module]
            for name, parameter in owner.named_parameters(recurse=False)
        ]
        try:
            for attributes, name, parameter in placed:
                # An instance's own attribute is found before `nn.Module` looks up a parameter.
                attributes[name] = plain(name, parameter)
            return forward(*given)
        finally:  # the pass breaks off once checkpointing has what it needs
            for attributes, name, _ in placed:
                attributes.pop(name, None)

    vars(module)["forward"] = lent


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
            wide = wide * cast("DTensor", self.weight).to_local()
        if self.bias is not None:
            wide = wide + cast("DTensor", self.bias).to_local()
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
        return kept(lambda: _sum(share, group))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return _sum(upstream[0], ctx.group), None


def _sum(share: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = share.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


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

    for name, part in [("embedding", decoder), *decoder.layers.items()]:
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
