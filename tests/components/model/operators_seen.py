"""Count expensive operators and collectives."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

DEAR = (
    *("aten.mm", "aten.addmm", "aten.bmm", "aten._grouped_mm", "mkldnn._linear_pointwise"),
    *("aten._scaled_dot_product", "aten._flash", "c10d.", "_c10d_functional."),
)


class Operators(TorchDispatchMode):
    """Count calls of operators with a name that starts with one of ``kinds``."""

    def __init__(self, kinds: Collection[str]) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._kinds = tuple(kinds)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if DTensor in types:  # its local operators are counted
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = str(func)  # without autograd's wrappers
        if name.startswith(self._kinds) and "wrap" not in name:
            self.counts[name] += 1
        return result
