"""Shards, meshes and records of `torch.distributed` that have no public name."""

from collections.abc import Sequence
from typing import Any

from torch import _C, Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

StridedShard = _StridedShard
"""A shard of what another axis of the mesh has split before, in rows with strides.

`Shard` splits from left to right over the axes of a mesh; FSDP over tensor ranks splits the
other way round, and the places of its rows can be said by this alone. Seen in 2.10 to 2.15.
"""


def flattened(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """See all axes of a mesh as one, named ``name``, with one process group.

    A public mesh of one axis would make the group anew for each. Seen in 2.10 to 2.15.
    """
    return mesh._flatten(name)


def concatenated(meshes: Sequence[DeviceMesh]) -> DeviceMesh:
    """Make one mesh whose axes are those of meshes of one root.

    In public a mesh is cut from its root by names, which joined axes have not. Seen in 2.10 to
    2.15.
    """
    return DeviceMesh._concatenate(list(meshes))


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the part on this rank, without an operator that dispatch modes would see.

    `DTensor.to_local` is an operator of autograd. Seen in 2.10 to 2.15.
    """
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def flight_record(*, of_nccl: bool) -> bytes:
    """Dump torch's flight recorder as JSON: NCCL's, or the one that other back-ends share.

    In public it writes a pickle when a collective times out, and only for NCCL. Seen in 2.10
    to 2.15.
    """
    groups: Any = getattr(_C, "_distributed_c10d")  # noqa: B009 - its stubs lack the recorder
    dump = groups._dump_nccl_trace_json if of_nccl else groups._dump_fr_trace_json
    record: bytes = dump()
    return record
