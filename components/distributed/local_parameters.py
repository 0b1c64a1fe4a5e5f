"""Local parameters: a module computes on plain tensors although its parameters are DTensors.

For a small product, DTensor's dispatch takes the host longer than the device needs. Here the
forward pass reads local parts, and the backward pass gives DTensors their gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor

from components.distributed.collectives import start_all_reduce
from components.torch_internals.distributed import local_tensor, place_part, placement_of


class GradientSum(NamedTuple):
    """Group and dtype of the sum of a replicated parameter's gradients."""

    group: dist.ProcessGroup
    dtype: torch.dtype


def place_parameters(
    module: nn.Module, mesh: DeviceMesh, placement: Placement, **others: Placement
) -> None:
    """Make parameters of the module itself DTensors; ``others`` have placements by name.

    Every rank must have the same values.
    """
    for name, whole in list(module.named_parameters(recurse=False)):
        placements = [others.get(name, placement)]
        placed = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        module.register_parameter(name, nn.Parameter(placed, requires_grad=whole.requires_grad))


def replicate_parameters(
    module: nn.Module,
    mesh: DeviceMesh,
    *,
    shares: GradientSum | None,
    rows: slice = slice(None),
) -> None:
    """Replicate a module's parameters; its forward pass reads ``rows`` as plain tensors.

    With ``shares`` each rank's gradient is a share of a sum; without, all gradients are equal.
    """
    place_parameters(module, mesh, Replicate())
    use_local_parameters(module, lambda name, parameter: to_local(parameter, shares)[rows])


def to_local(parameter: DTensor, shares: GradientSum | None = None) -> Tensor:
    """Return a parameter's part on this rank; ``shares`` sums its gradients over ranks."""
    lending: Callable[..., Tensor] = _Part.apply
    summing: Callable[..., Tensor] = _SumGradients.apply
    # Torch's compiler supports `DTensor.to_local`, but not our function.
    part = parameter.to_local() if torch.compiler.is_compiling() else lending(parameter)
    return part if shares is None else summing(part, shares)


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: DTensor) -> Tensor:
        ctx.placement = placement_of(parameter)
        return local_tensor(parameter).detach()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        return place_part(upstream[0], ctx.placement)


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, shares: GradientSum) -> Tensor:
        ctx.shares = shares
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        share, (group, dtype) = upstream[0], ctx.shares
        wide = share.to(torch.promote_types(share.dtype, dtype))
        total, _ = start_all_reduce(wide, group=group, at_once=True)
        return total.to(share.dtype), None


def use_local_parameters(
    module: nn.Module,
    plain: Callable[[str, DTensor], Tensor | None],
    owners: Sequence[nn.Module] | None = None,
) -> None:
    """Make the forward pass of ``module`` read plain tensors instead of its parameters.

    ``owners`` are the modules with the parameters, by default ``module``. No hooks: their ids
    differ per layer, so torch's compiler would make a graph per layer.
    """
    forward: Any = module.forward
    places = [
        (owner, name)
        for owner in owners or [module]
        for name, _ in owner.named_parameters(recurse=False)
    ]

    def call_with_local(*given: Any) -> Any:
        stand_ins = [(vars(owner), name, getattr(owner, name)) for owner, name in places]
        try:
            for attributes, name, parameter in stand_ins:
                # An instance's own attribute is found before `nn.Module` looks up a parameter.
                attributes[name] = plain(name, parameter)
            return forward(*given)
        finally:  # checkpointing stops the pass once it has what it needs
            for attributes, name, _ in stand_ins:
                attributes.pop(name, None)

    vars(module)["forward"] = call_with_local
