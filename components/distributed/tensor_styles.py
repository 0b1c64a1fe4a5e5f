"""How parts of a decoder compute on one rank's share.

Parameters are DTensors, and what goes between ranks is said in their placements; what a rank
computes by itself it computes on plain tensors. Torch's own column and row styles send every
product through DTensor's dispatch, which takes longer than a small product does.
"""

from collections.abc import Callable
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
from torch.distributed.tensor.parallel import ParallelStyle
from typing_extensions import override

from components.model.norms import Norm


def place_parameters(module: nn.Module, mesh: DeviceMesh, placement: Placement) -> None:
    """Make the module's own parameters DTensors; every rank must hold the same values."""
    for name, _ in list(module.named_parameters(recurse=False)):
        place_parameter(module, name, mesh, placement)


def place_parameter(
    module: nn.Module, name: str, mesh: DeviceMesh, placement: Placement
) -> None:
    """Make one parameter a DTensor, or another than it is."""
    parameter = module.get_parameter(name)
    if isinstance(parameter, DTensor):
        placed = cast("DTensor", parameter.detach()).redistribute(placements=[placement])
    else:
        placed = distribute_tensor(parameter, mesh, [placement], src_data_rank=None)
    module.register_parameter(name, nn.Parameter(placed, requires_grad=parameter.requires_grad))


class SharedInput(ParallelStyle):
    """Give a block its input whole, once for all maps that read it.

    It comes in as hidden states travel, ``Shard(1)`` or ``Replicate()``. Gradients of it are
    each rank's share; the backward pass adds them up and hands on what came in.
    """

    def __init__(self, *, between: Placement) -> None:
        super().__init__()
        self.between = between

    @override
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        # Within the forward pass, not before it: who computes the block again for its backward
        # pass keeps what came in, and gathers again.
        forward: Any = module.forward

        def share(hidden: Tensor, *others: Any) -> Any:
            placed = DTensor.from_local(hidden, device_mesh, [self.between], run_check=False)
            whole = placed.redistribute(placements=[Replicate()])
            return forward(whole.to_local(grad_placements=[Partial()]), *others)

        vars(module)["forward"] = share
        return module


class ColumnParallel(ParallelStyle):
    """Compute this rank's part of a linear map's outputs, from the whole input."""

    @override
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        place_parameters(module, device_mesh, Shard(0))
        _lend(module, _local)
        return module


class RowParallel(ParallelStyle):
    """Compute a linear map of this rank's part of the input, and add what all ranks have.

    The sum goes out as hidden states travel, ``Shard(1)`` or ``Replicate()``. The bias is added
    after it: once, and to a slice where there are slices, so that its gradient is a share.
    """

    def __init__(self, *, between: Placement) -> None:
        super().__init__()
        self.between = between

    @override
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        place_parameters(module, device_mesh, Replicate())
        place_parameter(module, "weight", device_mesh, Shard(1))
        _lend(module, _local_weight)
        multiply: Any = module.forward

        def add(part: Tensor) -> Tensor:
            product = multiply(part)
            share = DTensor.from_local(product, device_mesh, [Partial()], run_check=False)
            total: Tensor = share.redistribute(placements=[self.between]).to_local()
            if module.bias is None:
                return total
            bias = cast("DTensor", module.bias)
            here = _share(bias) if self.between.is_shard() else bias.to_local()
            return total + here.type_as(total)

        vars(module)["forward"] = add
        return module


class LocalParameters(ParallelStyle):
    """Let a module compute, by its own forward pass, on whole parameters as plain tensors.

    With ``sum_gradients`` each rank's gradient is its share of the whole, and the backward pass
    adds the shares up; without, every rank computes the same. ``rows``, of all the parameters,
    are what this rank reads.
    """

    def __init__(self, *, sum_gradients: bool, rows: slice) -> None:
        super().__init__()
        self.sum_gradients = sum_gradients
        self.rows = rows

    @override
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        place_parameters(module, device_mesh, Replicate())
        _lend(module, self._here)
        return module

    def _here(self, name: str, parameter: DTensor) -> Tensor:
        here = _share(parameter) if self.sum_gradients else parameter.to_local()
        return here[self.rows]


def _share(parameter: DTensor) -> Tensor:
    """Lend a replicated parameter of which each rank's gradient is a share of the whole."""
    whole = parameter.redistribute(placements=[Replicate()])
    return whole.to_local(grad_placements=[Partial()])


def _local(name: str, parameter: DTensor) -> Tensor:
    return parameter.to_local()


def _local_weight(name: str, parameter: DTensor) -> Tensor | None:
    return parameter.to_local() if name == "weight" else None


def _lend(module: nn.Module, plain: Callable[[str, DTensor], Tensor | None]) -> None:
    """Let the forward pass of ``module`` read plain tensors where its parameters stand.

    Within the pass and not in hooks: those have numbers of their own in each layer, on which
    torch's compiler would make a graph for each.
    """
    forward: Any = module.forward

    def lent(*given: Any) -> Any:
        placed = dict(module.named_parameters(recurse=False))
        try:
            for name, parameter in placed.items():
                # An instance's own attribute is found before `nn.Module` looks up a parameter.
                vars(module)[name] = plain(name, cast("DTensor", parameter))
            return forward(*given)
        finally:  # the pass breaks off once checkpointing has what it needs
            for name in placed:
                vars(module).pop(name, None)

    vars(module)["forward"] = lent


class SplitNorm(nn.Module):
    """Normalize vectors of which each rank holds a part, as ``Norm`` does the whole.

    The vectors stay where they are: one number a vector is summed over the ranks, two where the
    norm centers.
    """

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
        apply: Any = SumOverRanks.apply  # torch leaves it untyped
        total: Tensor = apply(part.sum(-1, keepdim=True), self._group)
        return total / self.dim


class SumOverRanks(torch.autograd.Function):
    """Add up over the ranks; each then uses the sum for itself, so gradients add up as well."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _summed(share, group)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return _summed(upstream[0], ctx.group), None


def _summed(share: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = share.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
