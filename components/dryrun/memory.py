"""Memory of a step at every moment, by category; every operator is seen on its way.

A storage counts from the operation that makes it until its last tensor is gone. Torch's own
`torch.distributed._tools.mem_tracker.MemTracker` counts the same bytes, but refuses a module
that runs twice, as stages do, and does not know gradients of the shards that are updated.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import Tensor
from torch.distributed.tensor import DTensor
from typing_extensions import override

from components.torch_internals.distributed import local_tensor
from components.torch_internals.operators import (
    CAST,
    WAIT,
    TorchDispatchMode,
    active_fake_mode,
    in_backward,
    storage_key,
    tree_leaves,
)


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
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


Category = Literal["weights", "gradients", "optimizer", "casts", "activations", "temporary"]
Phase = Literal["forward", "backward", "reduction", "update"]


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
    # Runs when the storage is freed; it must live as long.
    reference: Any = field(repr=False)


class MemoryLedger(OperatorWatch):
    """Count storages that are made while the mode is on, or named to it.

    Made in a forward pass, or received between two passes, they are ``activations`` or
    ``casts`` of weights, later ``temporary``; gradients are those that ``parameters`` have.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self.phase: Phase = "reduction"
        self.microbatches_begun = 0
        self.held: dict[Category, int] = dict.fromkeys(get_args(Category), 0)
        self.peaks: dict[Phase, Peak] = {}
        self._parameters = parameters
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

    def begin(self) -> None:
        """Start another step: forget the peaks, not what is held."""
        self.settle()
        self.peaks.clear()
        self._most.clear()
        self.phase, self.microbatches_begun = "reduction", 0

    def settle(self) -> None:
        """Write the peak down, if the last operation has reached one."""
        if self._rising is None:
            return
        (phase, operator), self._rising = self._rising, None
        self.peaks[phase] = Peak(phase, operator, self.microbatches_begun, dict(self.held))

    @override
    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if active_fake_mode() is not self._fake_mode:
            return func(*args, **kwargs)  # DTensor asks for shapes
        if func is WAIT.default and self._fake_mode:
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
        if phase == "forward" and func is CAST.default:
            held = self._storages.get(storage_key(args[0]))
            if held is not None and held.category == "weights":
                return "casts"
        return "activations" if phase == "forward" else "temporary"

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
