"""Record the operators that a call dispatches."""

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from components.torch_internals.operators import TorchDispatchMode, packet_of


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.overloads: list[Any] = []

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.overloads.append(func)
        return func(*args, **(kwargs or {}))


def overloads_of(act: Callable[[], object]) -> list[Any]:
    seen = Seen()
    with seen:
        act()
    return seen.overloads


def packets_of(act: Callable[[], object]) -> list[Any]:
    return [packet_of(overload) for overload in overloads_of(act)]
