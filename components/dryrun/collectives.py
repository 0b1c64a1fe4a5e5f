"""Collectives of a rank's step, by axis, operation and dtype.

Calls are seen where they leave torch's dispatcher, alike for gloo's ranks and a fake group's.
``bytes`` are those of the whole message: all that a gather collects or a scatter deals.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from typing_extensions import override

from components.distributed.mesh import Mesh
from components.dryrun.memory import OperatorWatch
from components.torch_internals.operators import qualified_name, tree_leaves

_DATA_AXES = {"data_replicate": "data", "data_shard": "data"}


class CollectiveKind(NamedTuple):
    """A kind of call on one axis; ``ranks`` are those of its group."""

    axis: str
    operation: str
    dtype: str
    ranks: int


# Operation, place of the message among the arguments (-1: it is the result), and of the group.
_CALLS = {
    "c10d.allreduce_": ("all_reduce", 0, 1),
    "c10d._allgather_base_": ("all_gather", 0, 2),
    "c10d._reduce_scatter_base_": ("reduce_scatter", 1, 2),
    "c10d.alltoall_base_": ("all_to_all", 1, 2),
    "c10d.allgather_": ("all_gather", 0, 2),
    "c10d.broadcast_": ("broadcast", 0, 1),
    "c10d.send": ("send", 0, 1),
    "c10d.recv_": ("receive", 0, 1),
    "_c10d_functional.all_reduce": ("all_reduce", 0, 2),
    "_c10d_functional.all_gather_into_tensor": ("all_gather", -1, 2),
    "_c10d_functional.reduce_scatter_tensor": ("reduce_scatter", 0, 3),
    "_c10d_functional.all_to_all_single": ("all_to_all", 0, 3),
}
# Torch's pipelines ask each other once, when they are made, whether all know their shapes.
_VOTE = torch.int32
_SENDING = {"all_reduce": 2.0, "receive": 0.0}  # rings send twice, everything else once


class CollectiveLedger(OperatorWatch):
    """Count calls and the bytes of their messages."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self._axes = axes_of_groups(mesh)
        self.calls: Counter[CollectiveKind] = Counter()
        self.bytes: Counter[CollectiveKind] = Counter()

    @override
    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        called = _CALLS.get(qualified_name(func))
        if called is not None:
            operation, place, group = called
            message = tree_leaves(result if place < 0 else args[place])
            if message[0].dtype is not _VOTE or operation not in {"send", "receive"}:
                self._count(operation, message, args[group])
        return result

    def _count(self, operation: str, message: Sequence[Tensor], group: Any) -> None:
        name = group if isinstance(group, str) else ProcessGroup.unbox(group).group_name
        axis, ranks = self._axes[name]
        dtype = str(message[0].dtype).removeprefix("torch.")
        kind = CollectiveKind(axis, operation, dtype, ranks)
        self.calls[kind] += 1
        self.bytes[kind] += sum(tensor.numel() * tensor.element_size() for tensor in message)


def axes_of_groups(mesh: Mesh) -> Mapping[str, tuple[str, int]]:
    """Name the axis, or the joined axes, of each process group, and count its ranks."""
    found: dict[str, tuple[str, int]] = {}
    groups = (mesh.dense, mesh.experts)
    joined = [m for group in groups for m in (group.grad_sync, group.shard, group.replicate)]
    degrees = vars(mesh.degrees)
    for one in [*joined, *(mesh.axis(axis) for axis in degrees)]:
        group = one.get_group()
        (name,) = one.mesh_dim_names or ("",)
        parts = [axis for axis in degrees if axis in name and degrees[axis] > 1]
        axis = " x ".join(dict.fromkeys(_DATA_AXES.get(part, part) for part in parts))
        if group.group_name not in found and parts:
            found[str(group.group_name)] = axis, group.size()
    default = dist.group.WORLD
    assert default is not None
    # An axis that has all ranks may be the default group itself: then it has the axis's name.
    found.setdefault(str(default.group_name), ("world", default.size()))
    return found


def sent_bytes(kind: CollectiveKind, message_bytes: float) -> float:
    """Count what one rank sends by a ring, of n ranks (n - 1) / n or twice as much.

    Thakur, Rabenseifner and Gropp 2005 (International Journal of High Performance Computing
    Applications 19), sections 3 and 4.
    """
    if kind.operation == "send":
        return message_bytes
    return _SENDING.get(kind.operation, 1.0) * message_bytes * (kind.ranks - 1) / kind.ranks
