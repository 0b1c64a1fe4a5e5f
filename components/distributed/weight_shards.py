"""Weight shards: the rows that one rank updates, and the global norm of their gradients.

A weight's rows are counted over all its dimensions but the last: a stack of matrices is one
long matrix. Whatever splits a weight, the optimizer, the global norm, loss scaling and
checkpoints see a list of shards, each a view of the weight that the model computes with.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from components.distributed.mesh import Mesh, ParamGroupMesh
from components.torch_internals.distributed import StridedShard, concatenated
from components.torch_internals.operators import divide_, multiply_, norms


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightShard:
    """Rows of one weight.

    ``parameter`` is what the optimizer updates: a view of the model's ``weight``, or where that
    is rounded a copy of this rank's rows in a finer dtype (``is_master``). ``split`` says
    whether ranks have different rows. ``replicas`` counts the ranks that hold the same ones. A
    ``tied`` weight is held by two pipeline stages.
    """

    name: str
    weight: nn.Parameter
    parameter: nn.Parameter
    param_mesh: ParamGroupMesh
    replicas: int
    tied: bool
    split: bool
    mesh: DeviceMesh | None
    placements: tuple[Placement, ...]

    @property
    def is_master(self) -> bool:
        """Whether the optimizer updates a finer copy of a rounded weight."""
        return self.parameter.dtype != self.weight.dtype

    @property
    def shape(self) -> torch.Size:
        """Give the shape of the whole weight, as rows."""
        return rows_of(torch.empty(self.weight.shape, device="meta")).shape

    def own_rows(self, rows: Tensor) -> Tensor:
        """Return this rank's part of the rows of a weight, or of its gradient."""
        shard = self.param_mesh.shard
        return own_rows(rows, shard.size(), shard.get_local_rank()) if self.split else rows

    def whole(self, rows: Tensor) -> Tensor:
        """Describe which part of a whole rows like this shard's are, without moving any."""
        if self.mesh is None:
            return rows
        shape, stride = self.shape, torch.empty(self.shape, device="meta").stride()
        return DTensor.from_local(
            rows, self.mesh, self.placements, run_check=False, shape=shape, stride=stride
        )


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that lies on this rank, sharing its memory."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def rows_of(tensor: Tensor) -> Tensor:
    """See a stack of matrices as one long matrix; vectors and matrices stay."""
    return tensor.flatten(0, -2) if tensor.dim() > 2 else tensor


def make_shards(
    stages: Iterable[nn.Module],
    mesh: Mesh,
    *,
    split: bool,
    weights: torch.dtype,
    tied: Sequence[str] = (),
) -> list[list[WeightShard]]:
    """List this rank's shards, stage by stage; ``split`` divides rows over sharding ranks.

    Where the stages' parameters are finer than ``weights`` they are rounded, and the rows that
    this rank updates kept as masters. A weight that two stages share counts in the first.
    """
    stages = list(stages)
    counts = Counter(id(weight) for stage in stages for *_, weight in _parameters(stage))
    rounded: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # of what several stages hold
    made = []
    for stage in stages:
        shards = []
        for owner, key, name, master in _parameters(stage):
            if id(master) in rounded:
                owner.register_parameter(key, rounded[id(master)][1])
                continue
            weight = _rounded(master, weights)
            if weight is not master:
                owner.register_parameter(key, weight)
            if counts[id(master)] > 1:
                rounded[id(master)] = master, weight  # kept: its number is not another's
            shards.append(_shard(name, weight, master, mesh, split=split, tied=name in tied))
        made.append(shards)
    return made


def _parameters(stage: nn.Module) -> Iterator[tuple[nn.Module, str, str, nn.Parameter]]:
    """Give every parameter: its module, its name there, its name in the stage, itself."""
    for prefix, owner in stage.named_modules():
        for key, weight in list(owner.named_parameters(recurse=False)):
            yield owner, key, f"{prefix}.{key}" if prefix else key, weight


def _rounded(weight: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    if weight.dtype == dtype:
        return weight
    return nn.Parameter(weight.detach().to(dtype), requires_grad=weight.requires_grad)


def _shard(
    name: str,
    weight: nn.Parameter,
    master: nn.Parameter,
    mesh: Mesh,
    *,
    split: bool,
    tied: bool,
) -> WeightShard:
    names = weight.device_mesh.mesh_dim_names if isinstance(weight, DTensor) else ()
    param_mesh = mesh.experts if names == ("expert",) else mesh.dense
    sharding = param_mesh.shard
    splits = split and sharding.size() > 1
    where, placements = _placed(weight, sharding if splits else None)
    rows = rows_of(local(master))
    if splits:
        rows = own_rows(rows, sharding.size(), sharding.get_local_rank())
        if master is not weight:  # a view would keep all rows
            rows = rows.clone()
    parts = math.prod(  # a strided shard is no `Shard`: ask what is replicated
        where.size(axis)
        for axis, kind in enumerate(placements)
        if where and not isinstance(kind, Replicate)
    )
    return WeightShard(
        name=name,
        weight=weight,
        parameter=nn.Parameter(rows),
        param_mesh=param_mesh,
        replicas=mesh.model_ranks // parts * (2 if tied else 1),
        tied=tied,
        split=splits,
        mesh=where,
        placements=tuple(placements),
    )


def own_rows(rows: Tensor, ranks: int, rank: int) -> Tensor:
    """Return a rank's rows, on all ranks but the last equally many."""
    length = -(-len(rows) // ranks)
    return rows[min(rank * length, len(rows)) : min((rank + 1) * length, len(rows))]


def _placed(
    weight: Tensor, sharding: DeviceMesh | None
) -> tuple[DeviceMesh | None, list[Placement]]:
    """Find the mesh on which a shard is a part of the whole, and how."""
    if not isinstance(weight, DTensor):
        return (None, []) if sharding is None else (sharding, [Shard(0)])
    if sharding is None:
        return weight.device_mesh, list(weight.placements)
    (other,) = weight.placements
    # The data ranks divide what tensor or expert ranks left: rows of the whole with strides.
    strided = isinstance(other, Shard) and other.dim == 0
    factor = weight.device_mesh.size()
    data: Any = StridedShard(0, split_factor=factor) if strided else Shard(0)
    return concatenated([sharding, weight.device_mesh]), [data, other]


def squared_norm(shards: Sequence[WeightShard]) -> Tensor:
    """Return this rank's share of the squared norm over all weights of all ranks, in float64.

    Summed over all ranks it counts each element once: each shard's is divided by ``replicas``.
    """
    gradients = _gradients(shards)
    squares = torch.stack([norm.double().square() for norm in norms(gradients)])
    replicas = torch.tensor([shard.replicas for shard in shards], dtype=torch.float64)
    return (squares / replicas.to(squares.device)).sum()


def clip(shards: Sequence[WeightShard], norm: Tensor, limit: float) -> None:
    """Scale all gradients down so that a ``norm`` above ``limit`` becomes ``limit``."""
    if limit < math.inf:
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)  # as `torch.nn.utils.clip_grad_norm_`
        gradients = _gradients(shards)
        multiply_(gradients, factor.to(gradients[0].dtype))


def unscale(shards: Sequence[WeightShard], scale: float) -> None:
    """Take a loss scale out of all gradients."""
    divide_(_gradients(shards), scale)


def _gradients(shards: Sequence[WeightShard]) -> list[Tensor]:
    found = [shard.parameter.grad for shard in shards]
    gradients = [gradient for gradient in found if gradient is not None]
    assert len(gradients) == len(found), "reduce first"
    return gradients
