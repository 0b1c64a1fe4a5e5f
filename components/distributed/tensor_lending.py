"""Lending: a module computes on plain tensors where its parameters are DTensors.

Torch's own styles send every product through DTensor's dispatch, which takes the host longer
than the device needs for a small one. Here a parameter lends its part to the forward pass, and
the backward pass gives the DTensor the gradient of that part.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor

from components.distributed.collectives import start_all_reduce
from components.torch_internals.distributed import local_tensor, placed, placement_of


class GradientSum(NamedTuple):
    """Over whom the gradients of a replicated parameter are added up, and in which dtype."""

    group: dist.ProcessGroup
    dtype: torch.dtype


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


def replicate_parameters(
    module: nn.Module,
    mesh: DeviceMesh,
    *,
    shares: GradientSum | None,
    rows: slice = slice(None),
) -> None:
    """Let a module compute, by its own forward pass, on whole parameters as plain tensors.

    With ``shares`` each rank's gradient is its share of the whole, and the backward pass adds
    the shares up; without, every rank computes the same. ``rows``, of all the parameters, are
    what this rank reads.
    """
    place_parameters(module, mesh, Replicate())
    lend(module, lambda name, parameter: part_of(parameter, shares)[rows])


def part_of(parameter: DTensor, shares: GradientSum | None = None) -> Tensor:
    """Lend a parameter's part on this rank; ``shares`` adds its gradients up over ranks."""
    lending: Callable[..., Tensor] = _Part.apply
    summing: Callable[..., Tensor] = _SumGradients.apply
    # Torch's compiler knows its own way into a DTensor, and not ours.
    part = parameter.to_local() if torch.compiler.is_compiling() else lending(parameter)
    return part if shares is None else summing(part, shares)


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: DTensor) -> Tensor:
        ctx.placement = placement_of(parameter)
        return local_tensor(parameter).detach()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        return placed(upstream[0], ctx.placement)


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
    places = [
        (owner, name)
        for owner in owners or [module]
        for name, _ in owner.named_parameters(recurse=False)
    ]

    def lent(*given: Any) -> Any:
        stand_ins = [(vars(owner), name, getattr(owner, name)) for owner, name in places]
        try:
            for attributes, name, parameter in stand_ins:
                # An instance's own attribute is found before `nn.Module` looks up a parameter.
                attributes[name] = plain(name, parameter)
            return forward(*given)
        finally:  # the pass breaks off once checkpointing has what it needs
            for attributes, name, _ in stand_ins:
                attributes.pop(name, None)

    vars(module)["forward"] = lent
