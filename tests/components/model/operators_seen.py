"""Which of the operators that take long, or wait for other ranks, a pass calls."""

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
    """Count calls by name, of operators whose names begin with one of ``kinds``."""

    def __init__(self, kinds: Collection[str]) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._kinds = tuple(kinds)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if DTensor in types:  # what it does to its local tensors comes by again
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = str(func)  # autograd's wrappers around results move nothing
        if name.startswith(self._kinds) and "wrap" not in name:
            self.counts[name] += 1
        return result
