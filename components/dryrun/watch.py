"""Seeing every operator on its way to the kernels, on tensors of this rank alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.tensor import DTensor
from typing_extensions import override

from components.torch_internals.dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
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
