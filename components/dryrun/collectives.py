"""What a rank sends in a step: each collective by axis, operation and dtype.

Calls are seen where they leave torch's dispatcher, so that gloo's ranks and those of a fake
group are counted alike. ``bytes`` are those of the whole message: all that a gather collects
or a scatter deals, what a reduction adds up, what an exchange or a message carries.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from typing_extensions import override

from components.distributed.mesh import Mesh
from components.dryrun.memory import OperatorWatch
from components.torch_internals.operators import qualified_name, tree_leaves

WORLD, PARTS = "world", {"data_replicate": "data", "data_shard": "data"}


class CollectiveKind(NamedTuple):
    """A kind of call on one axis; ``ranks`` are those of its group."""

    axis: str
    operation: str
    dtype: str
    ranks: int


@dataclass(frozen=True)
class _Call:
    """Where a call has its message and its group; the message -1 is the result."""

    operation: str
    message: int
    group: int


_CALLS = {
    "c10d.allreduce_": _Call("all_reduce", 0, 1),
    "c10d._allgather_base_": _Call("all_gather", 0, 2),
    "c10d._reduce_scatter_base_": _Call("reduce_scatter", 1, 2),
    "c10d.alltoall_base_": _Call("all_to_all", 1, 2),
    "c10d.allgather_": _Call("all_gather", 0, 2),
    "c10d.broadcast_": _Call("broadcast", 0, 1),
    "c10d.send": _Call("send", 0, 1),
    "c10d.recv_": _Call("receive", 0, 1),
    "_c10d_functional.all_reduce": _Call("all_reduce", 0, 2),
    "_c10d_functional.all_gather_into_tensor": _Call("all_gather", -1, 2),
    "_c10d_functional.reduce_scatter_tensor": _Call("reduce_scatter", 0, 3),
    "_c10d_functional.all_to_all_single": _Call("all_to_all", 0, 3),
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
        call = _CALLS.get(qualified_name(func))
        if call is not None:
            message = result if call.message < 0 else args[call.message]
            self._note(call.operation, tree_leaves(message), args[call.group])
        return result

    def take(self) -> tuple[Counter[CollectiveKind], Counter[CollectiveKind]]:
        """Hand over calls and bytes, and begin anew."""
        taken = self.calls, self.bytes
        self.calls, self.bytes = Counter(), Counter()
        return taken

    def _note(self, operation: str, message: Sequence[Tensor], group: Any) -> None:
        name = group if isinstance(group, str) else ProcessGroup.unbox(group).group_name
        if message[0].dtype is _VOTE and operation in {"send", "receive"}:
            return
        axis, ranks = self._axes[name]
        kind = CollectiveKind(
            axis, operation, str(message[0].dtype).removeprefix("torch."), ranks
        )
        self.calls[kind] += 1
        self.bytes[kind] += sum(tensor.numel() * tensor.element_size() for tensor in message)


def axes_of_groups(mesh: Mesh) -> Mapping[str, tuple[str, int]]:
    """Name the axis, or the joined axes, of each process group, and count its ranks."""
    found: dict[str, tuple[str, int]] = {}
    families = (mesh.dense, mesh.experts)
    joined = [m for family in families for m in (family.copies, family.pieces, family.others)]
    degrees = vars(mesh.degrees)
    for one in [*joined, *(mesh.axis(axis) for axis in degrees)]:
        group = one.get_group()
        (name,) = one.mesh_dim_names or ("",)
        parts = [axis for axis in degrees if axis in name and degrees[axis] > 1]
        axis = " x ".join(dict.fromkeys(PARTS.get(part, part) for part in parts))
        if group.group_name not in found and parts:
            found[str(group.group_name)] = axis, group.size()
    default = dist.group.WORLD
    assert default is not None
    # An axis that has all ranks may be the default group itself: then it has the axis's name.
    found.setdefault(str(default.group_name), (WORLD, default.size()))
    return found


def sent_bytes(kind: CollectiveKind, message_bytes: float) -> float:
    """Count what one rank sends by a ring, of n ranks (n - 1) / n or twice as much.

    Thakur, Rabenseifner and Gropp 2005 (International Journal of High Performance Computing
    Applications 19), sections 3 and 4.
    """
    if kind.operation == "send":
        return message_bytes
    return _SENDING.get(kind.operation, 1.0) * message_bytes * (kind.ranks - 1) / kind.ranks
