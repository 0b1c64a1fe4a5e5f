"""Private names of torch's autograd, activation checkpointing and compiler (dynamo).

`torch.compiler` has no public name for its counters, nor for the error at its limit. All were
seen in 2.10 to 2.15.
"""

from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import FailOnRecompileLimitHit as RecompileLimitHit
from torch._dynamo.utils import counters
from torch.distributed._composable.checkpoint_activation import checkpoint as _checkpoint


def in_backward() -> bool:
    """Whether this thread runs a backward pass; in public only hooks are told."""
    return torch._C._current_graph_task_id() != -1


def keeps_graph() -> bool:
    """Whether the backward pass that runs has ``retain_graph``, which no `Function` is told."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def will_run(node: Any) -> bool:
    """Whether the backward pass that runs wants what goes to ``node``, a next function.

    ``needs_input_grad`` says what has a gradient, not what this pass asks for. Of a leaf that
    is asked for by name torch does not tell: yes.
    """
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return True


def checkpoint(module: nn.Module) -> None:
    """Forget a module's inner activations and compute them again, by hooks on the module.

    `torch.utils.checkpoint` wraps calls, and a wrapper module gives parameters other names.
    """
    _checkpoint(module)


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
