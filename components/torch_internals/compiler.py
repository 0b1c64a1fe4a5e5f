"""How many graphs torch's compiler (dynamo) has made, and what happens at its limit.

`torch.compiler` has no public name for either. Seen in torch 2.10 to 2.15.
"""

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit as RecompileLimitHit
from torch._dynamo.utils import counters

__all__ = ["RecompileLimitHit", "count_graphs", "fail_at_recompile_limit", "recompile_limit"]


def count_graphs() -> int:
    """Count the graphs that this process has compiled: first ones and recompilations alike."""
    return int(counters["stats"]["unique_graphs"])


def fail_at_recompile_limit() -> None:
    """Raise `RecompileLimitHit` where a function needs more than `recompile_limit` graphs.

    Else torch warns, and calls the function without its compiler from then on.
    """
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def recompile_limit() -> int:
    """Return how many graphs torch makes of one function, for other shapes or modes."""
    return int(torch._dynamo.config.recompile_limit)
