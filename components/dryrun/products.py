"""FLOPs of a step by operator, by the formulas of ``torch.utils.flop_counter``.

They count matrix products and attention, the whole of its matrix: a mask is not seen.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from components.dryrun.watch import Watch
from components.profiling.counts import FORMULAS
from components.torch_internals.dispatch import packet_of


class FlopLedger(Watch):
    """Count by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()

    @override
    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result, packet = func(*args, **kwargs), packet_of(func)
        formula = FORMULAS.get(packet)
        if formula is not None:
            name = str(packet).removeprefix("aten.").strip("_")
            self.flops[name] += formula(*args, **kwargs, out_val=result)
        return result

    def take(self) -> Counter[str]:
        """Hand over the counts, and begin anew."""
        taken, self.flops = self.flops, Counter()
        return taken
