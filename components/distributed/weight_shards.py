"""Weight shards: the rows that one rank updates, and the global norm of their gradients.

A weight's rows are counted over all its dimensions but the last: a stack of matrices is one
long matrix. Optimizer, global norm, loss scaling and checkpoints use only the list of shards.
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
from components.torch_internals.distributed import StridedShard, concatenate_meshes
from components.torch_internals.operators import compute_norms, divide_, multiply_


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightShard:
    """Rows of one weight.

    The optimizer updates ``parameter``: a view of ``weight``, or if the weight is rounded, this
    rank's rows in a wider dtype (``is_master``). ``split``: ranks have different rows.
    ``replicas`` counts the ranks with the same rows. ``tied``: in two pipeline stages.
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
        """Whether the optimizer updates a wider copy of a rounded weight."""
        return self.parameter.dtype != self.weight.dtype

    @property
    def whole_shape(self) -> torch.Size:
        """Shape of the whole weight, as rows."""
        return rows_of(torch.empty(self.weight.shape, device="meta")).shape

    def own_rows(self, rows: Tensor) -> Tensor:
        """Return this rank's part of the rows of a weight, or of its gradient."""
        shard = self.param_mesh.shard
        return own_rows(rows, shard.size(), shard.get_local_rank()) if self.split else rows

    def to_dtensor(self, rows: Tensor) -> Tensor:
        """Return a DTensor of ``rows``, which are laid out like this shard, without a copy."""
        if self.mesh is None:
            return rows
        shape, stride = self.whole_shape, torch.empty(self.whole_shape, device="meta").stride()
        return DTensor.from_local(
            rows, self.mesh, self.placements, run_check=False, shape=shape, stride=stride
        )


def get_local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor; it shares the tensor's memory."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def rows_of(tensor: Tensor) -> Tensor:
    """Return a stack of matrices as one long matrix; vectors and matrices do not change."""
    return tensor.flatten(0, -2) if tensor.dim() > 2 else tensor


def make_shards(
    stages: Iterable[nn.Module],
    mesh: Mesh,
    *,
    split: bool,
    weights: torch.dtype,
    tied: Sequence[str] = (),
) -> list[list[WeightShard]]:
    """Return this rank's shards per stage; ``split`` divides rows over sharding ranks.

    Parameters with a wider dtype than ``weights`` are rounded; the rows that this rank updates
    become masters. A weight of two stages counts in the first.
    """
    stages = list(stages)
    counts = Counter(id(weight) for stage in stages for *_, weight in _parameters(stage))
    rounded: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # weights of several stages
    weight_shards = []
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
                rounded[id(master)] = master, weight  # keep `master` alive: its id stays unique
            shards.append(_shard(name, weight, master, mesh, split=split, tied=name in tied))
        weight_shards.append(shards)
    return weight_shards


def _parameters(stage: nn.Module) -> Iterator[tuple[nn.Module, str, str, nn.Parameter]]:
    """Yield each parameter's module, name in the module, name in the stage, and tensor."""
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
    rows = rows_of(get_local_part(master))
    if splits:
        rows = own_rows(rows, sharding.size(), sharding.get_local_rank())
        if master is not weight:  # a view would keep all rows
            rows = rows.clone()
    parts = math.prod(  # a strided shard is no `Shard`: test for `Replicate`
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
    """Return a rank's rows; ranks have equal numbers of rows, the last ones may have fewer."""
    length = -(-len(rows) // ranks)
    return rows[min(rank * length, len(rows)) : min((rank + 1) * length, len(rows))]


def _placed(
    weight: Tensor, sharding: DeviceMesh | None
) -> tuple[DeviceMesh | None, list[Placement]]:
    """Return the mesh and placements of a shard within the whole weight."""
    if not isinstance(weight, DTensor):
        return (None, []) if sharding is None else (sharding, [Shard(0)])
    if sharding is None:
        return weight.device_mesh, list(weight.placements)
    (other,) = weight.placements
    # Data ranks split the part of a tensor or expert rank: strided rows of the whole.
    strided = isinstance(other, Shard) and other.dim == 0
    factor = weight.device_mesh.size()
    data: Any = StridedShard(0, split_factor=factor) if strided else Shard(0)
    return concatenate_meshes([sharding, weight.device_mesh]), [data, other]


def squared_norm(shards: Sequence[WeightShard]) -> Tensor:
    """Return this rank's share of the squared norm over all weights and ranks, in float64."""
    gradients = _gradients(shards)
    squares = torch.stack([norm.double().square() for norm in compute_norms(gradients)])
    replicas = torch.tensor([shard.replicas for shard in shards], dtype=torch.float64)
    return (squares / replicas.to(squares.device)).sum()


def clip_gradients(shards: Sequence[WeightShard], norm: Tensor, limit: float) -> None:
    """Scale all gradients down so that a ``norm`` above ``limit`` becomes ``limit``."""
    if limit < math.inf:
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)  # as `torch.nn.utils.clip_grad_norm_`
        gradients = _gradients(shards)
        multiply_(gradients, factor.to(gradients[0].dtype))


def unscale_gradients(shards: Sequence[WeightShard], scale: float) -> None:
    """Divide all gradients by the loss scale."""
    divide_(_gradients(shards), scale)


def _gradients(shards: Sequence[WeightShard]) -> list[Tensor]:
    shard_gradients = [shard.parameter.grad for shard in shards]
    gradients = [gradient for gradient in shard_gradients if gradient is not None]
    assert len(gradients) == len(shard_gradients), "reduce first"
    return gradients
