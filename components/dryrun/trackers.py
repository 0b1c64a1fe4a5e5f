"""Trackers of a step's memory, collectives and FLOPs, which see every operator.

A storage counts, with its current size, from the operation that creates it until its last
tensor is freed: FSDP resizes storages of gathered weights to 0 while autograd has their
tensors. A collective's ``bytes`` are all that a gather collects or a scatter distributes.
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
StepPhase = Literal["forward", "backward", "reduction", "update"]
_DATA_AXES = {"data_replicate": "data", "data_shard": "data"}
# Operation, argument index of the message (-1: the result), argument index of the group.
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
# dtype of a message that torch's pipelines send once: whether all stages know their shapes.
_VOTE = torch.int32
_SENDING = {"all_reduce": 2.0, "receive": 0.0}  # rings send twice, everything else once


class OperatorWatch(operators.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Dispatch mode of torch that lets DTensors resolve into their local tensors."""

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
        return self.call_operator(func, args, kwargs or {})

    def call_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``func``, or return a result in its place."""
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Peak:
    """Memory peak of a phase: bytes by category, and the ``operator`` that reached it."""

    phase: StepPhase
    operator: str
    microbatches_begun: int
    by_category: dict[Category, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.by_category.values())


@dataclass(eq=False)
class _Held:
    bytes: int
    category: Category
    reference: Any  # weak reference: its callback runs when the storage is freed


class MemoryLedger(OperatorWatch):
    """Memory ledger: counts storages created while the mode is on, or passed to `name`.

    Storages created in the forward phase, or received between two passes, are ``activations``
    or ``casts`` of weights; later ones are ``temporary``. Gradients are the gradients of
    ``parameters``, and their ``sums`` in buckets.
    """

    def __init__(
        self, parameters: Sequence[Tensor], sums: Callable[[], Iterable[Tensor]] = tuple
    ) -> None:
        super().__init__()
        self.phase: StepPhase = "reduction"
        self.microbatches_begun = 0
        self.held: dict[Category, int] = dict.fromkeys(get_args(Category), 0)
        self.peaks: dict[StepPhase, Peak] = {}
        self._parameters, self._sums = parameters, sums
        self._storages: dict[int, _Held] = {}
        self._most: dict[StepPhase, int] = {}
        # Latest operation that raised the peak. Memory only grows until something is freed, so
        # the peak is recorded at the next free.
        self._rising: tuple[StepPhase, str] | None = None
        self._fake_mode = active_fake_mode()

    def set_category(self, category: Category, tensors: Iterable[Tensor]) -> None:
        """Set the category of tensors; add those that are not in the ledger."""
        for tensor in tensors:
            # Not `shards.local`: its `detach` would pass through all modes, thousands of times.
            local = local_tensor(tensor)
            storage = self._storages.get(storage_key(local))
            if storage is None:
                self._add(local, category)
            else:
                self.held[storage.category] -= storage.bytes
                self.held[category] += storage.bytes
                storage.category = category

    def find_gradients(self) -> None:
        """Find the current gradients; do not call this while one of them is being freed."""
        gradients = (parameter.grad for parameter in self._parameters)
        self.set_category(
            "gradients", (gradient for gradient in gradients if gradient is not None)
        )
        self.set_category("gradients", self._sums())

    @override
    def __enter__(self) -> Self:
        resize = UntypedStorage.resize_

        def record_storage(storage: UntypedStorage, size: int) -> object:
            result = resize(storage, size)
            if (entry := self._storages.get(storage_key(storage))) is not None:
                self.record_peak()
                self.held[entry.category] += size - entry.bytes
                entry.bytes = size
            return result

        self._resizes = patch.object(UntypedStorage, "resize_", record_storage)
        self._resizes.start()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    @override
    def __exit__(self, *error: Any) -> None:
        self._resizes.stop()
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def start_step(self) -> None:
        """Start another step: clear the peaks, keep the storages."""
        self.record_peak()
        self.peaks.clear()
        self._most.clear()
        self.phase, self.microbatches_begun = "reduction", 0

    def record_peak(self) -> None:
        """Record the peak, if an operation since the last record raised it."""
        if self._rising is not None:
            (phase, operator), self._rising = self._rising, None
            self.peaks[phase] = Peak(phase, operator, self.microbatches_begun, dict(self.held))

    @override
    def call_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if active_fake_mode() is not self._fake_mode:
            return func(*args, **kwargs)  # DTensor infers shapes
        if func is operators.WAIT.default and self._fake_mode:
            return args[0]  # only the fake operator creates a new tensor
        result = func(*args, **kwargs)
        phase = "backward" if in_backward() else self.phase
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor, self._category(func, args, phase))
        if phase in {"reduction", "update"}:
            self.find_gradients()
        total = sum(self.held.values())
        if total > self._most.get(phase, 0):
            self._most[phase] = total
            self._rising = phase, str(func)
        return result

    def _category(self, func: Any, args: Any, phase: StepPhase) -> Category:
        if phase != "forward":
            return "temporary"
        casts = func is operators.CAST.default
        entry = self._storages.get(storage_key(args[0])) if casts else None
        return "casts" if entry is not None and entry.category == "weights" else "activations"

    def _add(self, tensor: Tensor, category: Category) -> None:
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        if key in self._storages or tensor.device.type == "meta" or not storage.size():
            return

        def remove_storage(_: Any) -> None:
            self.record_peak()
            entry = self._storages.pop(key)
            self.held[entry.category] -= entry.bytes

        self._storages[key] = _Held(
            storage.size(), category, weakref.ref(storage, remove_storage)
        )
        self.held[category] += storage.size()


class FlopLedger(OperatorWatch):
    """FLOP ledger: counts FLOPs by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()

    @override
    def call_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result, packet = func(*args, **kwargs), operators.packet_of(func)
        if (formula := FORMULAS.get(packet)) is not None:
            name = str(packet).removeprefix("aten.").strip("_")
            self.flops[name] += formula(*args, **kwargs, out_val=result)
        return result


class CollectiveKind(NamedTuple):
    """Kind of collective on one axis; ``ranks`` is the size of its group."""

    axis: str
    operation: str
    dtype: str
    ranks: int


class CollectiveLedger(OperatorWatch):
    """Collective ledger: counts calls and the bytes of their messages."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self._axes = axes_of_groups(mesh)
        self.calls: Counter[CollectiveKind] = Counter()
        self.bytes: Counter[CollectiveKind] = Counter()

    @override
    def call_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if (call := _CALLS.get(operators.qualified_name(func))) is None:
            return result
        operation, place, group = call
        message = tree_leaves(result if place < 0 else args[place])
        if message[0].dtype is not _VOTE or operation not in {"send", "receive"}:
            box = args[group]
            name = box if isinstance(box, str) else ProcessGroup.unbox(box).group_name
            axis, ranks = self._axes[name]
            dtype = str(message[0].dtype).removeprefix("torch.")
            kind = CollectiveKind(axis, operation, dtype, ranks)
            self.calls[kind] += 1
            self.bytes[kind] += sum(
                tensor.numel() * tensor.element_size() for tensor in message
            )
        return result


def axes_of_groups(mesh: Mesh) -> Mapping[str, tuple[str, int]]:
    """Map the name of each process group to its axis, or joined axes, and its size."""
    axes: dict[str, tuple[str, int]] = {}
    groups = (mesh.dense, mesh.experts)
    joined = [m for group in groups for m in (group.grad_sync, group.shard, group.replicate)]
    used = [axis for axis, ranks in mesh.axis_meshes.items() if ranks.size() > 1]
    for submesh in [*joined, *mesh.axis_meshes.values()]:
        group = submesh.get_group()
        (name,) = submesh.mesh_dim_names or ("",)
        parts = [axis for axis in used if axis in name]
        axis = " x ".join(dict.fromkeys(_DATA_AXES.get(part, part) for part in parts))
        if group.group_name not in axes and parts:
            axes[str(group.group_name)] = axis, group.size()
    default = dist.group.WORLD
    assert default is not None
    # An axis with all ranks may be the default group: then the group has the axis's name.
    axes.setdefault(str(default.group_name), ("world", default.size()))
    return axes


def sent_bytes(kind: CollectiveKind, message_bytes: float) -> float:
    """Return the bytes that one of n ranks sends in a ring: (n - 1) / n of the message.

    An all-reduce sends twice as much (Thakur, Rabenseifner and Gropp 2005, sections 3 and 4,
    International Journal of High Performance Computing Applications 19).
    """
    if kind.operation == "send":
        return message_bytes
    return _SENDING.get(kind.operation, 1.0) * message_bytes * (kind.ranks - 1) / kind.ranks
