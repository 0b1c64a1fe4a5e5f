"""What one rank updates: for each weight the rows that are its own, as plain tensors.

Every layout ends here. Whatever splits a weight (tensor ranks, data ranks, both, or nobody),
the optimizer, the global norm, loss scaling and checkpoints see a list of shards, each a view
of the weight that the model computes with.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from components.parallelism.mesh import Mesh


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightShard:
    """Rows of one weight.

    ``parameter`` is what the optimizer updates, a view of the model's ``weight``. ``replicas``
    counts the ranks that hold the same rows: a sum over all ranks counts them once each if
    every rank divides its own by it. A ``tied`` weight is held by two pipeline stages.
    """

    name: str
    weight: nn.Parameter
    parameter: nn.Parameter
    replicas: int
    tied: bool
    mesh: DeviceMesh | None
    placements: tuple[Placement, ...]

    @property
    def shape(self) -> torch.Size:
        """Give the shape of the whole weight."""
        return self.weight.shape

    def whole(self, rows: Tensor) -> Tensor:
        """Say of rows like this shard's which part of a whole they are, without moving any."""
        if self.mesh is None:
            return rows
        return DTensor.from_local(
            rows,
            self.mesh,
            self.placements,
            run_check=False,
            shape=self.shape,
            stride=torch.empty(self.shape, device="meta").stride(),
        )


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that lies on this rank, sharing its memory."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def make_shards(
    named: Iterable[tuple[str, nn.Parameter]],
    mesh: Mesh,
    *,
    split: bool,
    tied: Sequence[str] = (),
) -> list[WeightShard]:
    """List this rank's shards; ``split`` gives each data rank some rows of every weight.

    ``tied`` names the weights that two pipeline stages hold.
    """
    made = []
    for name, weight in named:
        where, placements = _placed(weight, mesh, split=split)
        rows = local(weight)
        if split:
            rows = own_rows(rows, mesh.degrees.data_shard, mesh.place("data_shard"))
        parts = _parts(where, placements)
        made.append(
            WeightShard(
                name=name,
                weight=weight,
                parameter=nn.Parameter(rows),
                replicas=mesh.model_ranks // parts * (2 if name in tied else 1),
                tied=name in tied,
                mesh=where,
                placements=tuple(placements),
            )
        )
    return made


def own_rows(rows: Tensor, pieces: int, index: int) -> Tensor:
    """Take one of ``pieces`` runs of rows, all but the last as long as the first."""
    length = -(-len(rows) // pieces)
    return rows[min(index * length, len(rows)) : min((index + 1) * length, len(rows))]


def _placed(
    weight: Tensor, mesh: Mesh, *, split: bool
) -> tuple[DeviceMesh | None, list[Placement]]:
    """Find the mesh on which a shard is a part of the whole, and how."""
    if not isinstance(weight, DTensor):
        return (mesh.axis("data_shard"), [Shard(0)]) if split else (None, [])
    if not split:
        return weight.device_mesh, list(weight.placements)
    (tensor,) = weight.placements
    # The data ranks divide what the tensor ranks left: rows of the whole with strides.
    strided = isinstance(tensor, Shard) and tensor.dim == 0
    data: Any = _StridedShard(0, split_factor=mesh.degrees.tensor) if strided else Shard(0)
    return mesh.root["data_shard", "tensor"], [data, tensor]


def _parts(mesh: DeviceMesh | None, placements: Sequence[Placement]) -> int:
    """Count the different parts; a strided shard is no ``Shard``, so ask what is replicated."""
    parts = 1
    for axis, placement in enumerate(placements):
        if mesh is not None and not isinstance(placement, Replicate):
            parts *= mesh.size(axis)
    return parts
