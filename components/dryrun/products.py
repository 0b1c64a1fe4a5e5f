"""FLOPs of a step by operator, by the formulas of ``torch.utils.flop_counter``.

They count matrix products and attention, the whole of its matrix: a mask is not seen. Three
operators have no formula there and get one here.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import addmm_flop, flop_registry, sdpa_backward_flop, sdpa_flop
from typing_extensions import override

from components.dryrun.watch import Watch

aten = torch.ops.aten


def _grouped(rows: Tensor, stack: Tensor, *others: Any, **named: Any) -> int:
    """Count a grouped product, in which each row meets one matrix of the ``stack``.

    That is (pairs, depth) by (experts, depth, columns); for the gradient of the stack it is
    (depth, pairs) by (pairs, columns), where pairs are dealt to experts.
    """
    return 2 * rows.shape[0] * rows.shape[1] * stack.shape[-1]


FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    aten.addmm_: addmm_flop,
    aten._grouped_mm: _grouped,
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
}


class FlopLedger(Watch):
    """Count by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()

    @override
    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            name = str(func._overloadpacket).removeprefix("aten.").strip("_")
            self.flops[name] += formula(*args, **kwargs, out_val=result)
        return result

    def take(self) -> Counter[str]:
        """Hand over the counts, and begin anew."""
        taken, self.flops = self.flops, Counter()
        return taken
