"""What a rank's step takes: memory at every moment, collectives, FLOPs; every operator is seen.

A storage counts from the operation that makes it until its last tensor is gone, by the size
that it has: FSDP empties those of gathered weights, whose tensors autograd keeps. Torch's own
`torch.distributed._tools.mem_tracker.MemTracker` counts the same bytes, but refuses a module
that runs twice, as stages do, and does not know gradients of the shards that are updated.

Collectives are alike for gloo's ranks and a fake group's. Their ``bytes`` are those of the
whole message: all that a gather collects or a scatter deals.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from typing_extensions import override

from components.distributed.mesh import Mesh
from components.profiling.counts import FORMULAS
from components.torch_internals import operators
from components.torch_internals.distributed import local_tensor
from components.torch_internals.operators import (
    active_fake_mode,
    in_backward,
    storage_key,
    tree_leaves,
)

Category = Literal["weights", "gradients", "optimizer", "casts", "activations", "temporary"]
Phase = Literal["forward", "backward", "reduction", "update"]
_DATA_AXES = {"data_replicate": "data", "data_shard": "data"}
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


class OperatorWatch(operators.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """A mode of torch's dispatcher that leaves DTensors to resolve into their local parts."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @override
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        return self.see(func, args, kwargs or {})

    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Let ``func`` compute, or answer for it."""
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Peak:
    """Bytes by category when most was held; ``operator`` is the one that made it so."""

    phase: Phase
    operator: str
    microbatches_begun: int
    by_category: dict[Category, int]

    @property
    def bytes(self) -> int:
        return sum(self.by_category.values())


@dataclass(eq=False)
class _Held:
    bytes: int
    category: Category
    reference: Any  # runs when the storage is freed; it must live as long


class MemoryLedger(OperatorWatch):
    """Count storages that are made while the mode is on, or named to it.

    Made in a forward pass, or received between two passes, they are ``activations`` or
    ``casts`` of weights, later ``temporary``; gradients are those that ``parameters`` have, and
    the ``sums`` of them in buckets.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        sums: Callable[[], Iterable[Tensor]] = tuple,
    ) -> None:
        super().__init__()
        self.phase: Phase = "reduction"
        self.microbatches_begun = 0
        self.held: dict[Category, int] = dict.fromkeys(get_args(Category), 0)
        self.peaks: dict[Phase, Peak] = {}
        self._parameters, self._sums = parameters, sums
        self._storages: dict[int, _Held] = {}
        self._most: dict[Phase, int] = {}
        # The last operation's, until something is freed: memory only grew in between.
        self._rising: tuple[Phase, str] | None = None
        self._fake_mode = active_fake_mode()

    def name(self, category: Category, tensors: Iterable[Tensor]) -> None:
        """Describe what tensors are for, whether they were known or not."""
        for tensor in tensors:
            # Not `shards.local`, whose `detach` would go through all modes, thousands of times.
            here = local_tensor(tensor)
            held = self._storages.get(storage_key(here))
            if held is None:
                self._add(here, category)
            else:
                self.held[held.category] -= held.bytes
                self.held[category] += held.bytes
                held.category = category

    def find_gradients(self) -> None:
        """Name what gradients there are now; never while one of them is being freed."""
        gradients = (parameter.grad for parameter in self._parameters)
        self.name("gradients", (one for one in gradients if one is not None))
        self.name("gradients", self._sums())

    @override
    def __enter__(self) -> Self:
        resize = UntypedStorage.resize_

        def seen(storage: UntypedStorage, size: int) -> object:
            result = resize(storage, size)
            if (held := self._storages.get(storage_key(storage))) is not None:
                self.settle()
                self.held[held.category] += size - held.bytes
                held.bytes = size
            return result

        self._resizes = patch.object(UntypedStorage, "resize_", seen)
        self._resizes.start()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    @override
    def __exit__(self, *error: Any) -> None:
        self._resizes.stop()
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def begin(self) -> None:
        """Start another step: forget the peaks, not what is held."""
        self.settle()
        self.peaks.clear()
        self._most.clear()
        self.phase, self.microbatches_begun = "reduction", 0

    def settle(self) -> None:
        """Write the peak down, if the last operation has reached one."""
        if self._rising is not None:
            (phase, operator), self._rising = self._rising, None
            self.peaks[phase] = Peak(phase, operator, self.microbatches_begun, dict(self.held))

    @override
    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if active_fake_mode() is not self._fake_mode:
            return func(*args, **kwargs)  # DTensor asks for shapes
        if func is operators.WAIT.default and self._fake_mode:
            return args[0]  # only a fake one makes a new tensor
        result = func(*args, **kwargs)
        phase = "backward" if in_backward() else self.phase
        for made in tree_leaves(result):
            if isinstance(made, Tensor):
                self._add(made, self._category(func, args, phase))
        if phase in {"reduction", "update"}:
            self.find_gradients()
        total = sum(self.held.values())
        if total > self._most.get(phase, 0):
            self._most[phase] = total
            self._rising = phase, str(func)
        return result

    def _category(self, func: Any, args: Any, phase: Phase) -> Category:
        if phase != "forward":
            return "temporary"
        casts = func is operators.CAST.default
        held = self._storages.get(storage_key(args[0])) if casts else None
        return "casts" if held is not None and held.category == "weights" else "activations"

    def _add(self, tensor: Tensor, category: Category) -> None:
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        if key in self._storages or tensor.device.type == "meta" or not storage.size():
            return

        def freed(_: Any) -> None:
            self.settle()
            held = self._storages.pop(key)
            self.held[held.category] -= held.bytes

        self._storages[key] = _Held(storage.size(), category, weakref.ref(storage, freed))
        self.held[category] += storage.size()


class FlopLedger(OperatorWatch):
    """Count by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()

    @override
    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result, packet = func(*args, **kwargs), operators.packet_of(func)
        if (formula := FORMULAS.get(packet)) is not None:
            name = str(packet).removeprefix("aten.").strip("_")
            self.flops[name] += formula(*args, **kwargs, out_val=result)
        return result


class CollectiveKind(NamedTuple):
    """A kind of call on one axis; ``ranks`` are those of its group."""

    axis: str
    operation: str
    dtype: str
    ranks: int


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
        if (called := _CALLS.get(operators.qualified_name(func))) is None:
            return result
        operation, place, group = called
        message = tree_leaves(result if place < 0 else args[place])
        if message[0].dtype is not _VOTE or operation not in {"send", "receive"}:
            box = args[group]
            name = box if isinstance(box, str) else ProcessGroup.unbox(box).group_name
            axis, ranks = self._axes[name]
            dtype = str(message[0].dtype).removeprefix("torch.")
            kind = CollectiveKind(axis, operation, dtype, ranks)
            self.calls[kind] += 1
            self.bytes[kind] += sum(one.numel() * one.element_size() for one in message)
        return result


def axes_of_groups(mesh: Mesh) -> Mapping[str, tuple[str, int]]:
    """Name the axis, or the joined axes, of each process group, and count its ranks."""
    found: dict[str, tuple[str, int]] = {}
    groups = (mesh.dense, mesh.experts)
    joined = [m for group in groups for m in (group.grad_sync, group.shard, group.replicate)]
    used = [axis for axis, ranks in mesh.axes.items() if ranks.size() > 1]
    for one in [*joined, *mesh.axes.values()]:
        group = one.get_group()
        (name,) = one.mesh_dim_names or ("",)
        parts = [axis for axis in used if axis in name]
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
