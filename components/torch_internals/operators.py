"""Private names of torch's operators, dispatch, autograd and compiler. Seen in 2.10 to 2.15.

`TorchDispatchMode` sees operators as they leave the dispatcher, after autograd and DTensor.
`FakeTensorMode` makes tensors without values that know their device; `meta` does not. At
`FakeStore` meets the process group `fake`, whose collectives return at once. `checkpoint` hangs
hooks on a module: public ones wrap it, which gives its parameters other names.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, UntypedStorage
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters
from torch._guards import active_fake_mode as active_fake_mode
from torch._subclasses import FakeTensorMode as FakeTensorMode
from torch.distributed._composable.checkpoint_activation import checkpoint as checkpoint
from torch.testing._internal.distributed.fake_pg import FakeStore as FakeStore
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves

# `torch.compiler` has no public name for the error at its limit, nor for its counters.
RecompileLimitHit = FailOnRecompileLimitHit
_aten = torch.ops.aten

GROUPED_PRODUCT: Any = _aten._grouped_mm
"""What `torch.nn.functional.grouped_mm` calls."""
FLASH_ATTENTION: Any = _aten._scaled_dot_product_flash_attention
"""Attention on CUDA without a mask, as `scaled_dot_product_attention` chooses it."""
EFFICIENT_ATTENTION: Any = _aten._scaled_dot_product_efficient_attention
"""Attention on CUDA in any precision."""
MATH_ATTENTION: Any = _aten._scaled_dot_product_attention_math
"""Attention by its formula, with the whole matrix of scores."""
CPU_ATTENTION: Any = _aten._scaled_dot_product_flash_attention_for_cpu
"""Attention on a CPU; torch has no formula for its FLOPs."""
CPU_ATTENTION_BACKWARD: Any = _aten._scaled_dot_product_flash_attention_for_cpu_backward
"""Its backward pass."""
CAST: Any = _aten._to_copy
"""What `Tensor.to` calls where the dtype changes."""
READ_NUMBER: Any = _aten._local_scalar_dense
"""What `Tensor.item` calls."""
ADD_TO_WIDER: Any = _aten.addmm.dtype_out
"""What `torch.addmm` calls where it is given a wider sum to add to."""
WAIT: Any = torch.ops._c10d_functional.wait_tensor
"""The end of a functional collective."""
# A build may lack the library, or the parts of it that torch uses.
ONEDNN_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's linear map; None in a build without oneDNN."""


def linear_by_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Map (..., depth) by (rows, depth) in oneDNN: no setting sends torch's own there."""
    return cast("Tensor", ONEDNN_LINEAR(inputs, weight, bias, "none", [], ""))


def has_kernel(operator: str, device: str) -> bool:
    """Whether ``operator``, such as ``aten::mm``, has a kernel on a kind of device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, device.upper())


def norms(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Take each tensor's 2-norm in one kernel; `get_total_norm` gives only that over all."""
    return torch._foreach_norm(list(tensors))


def multiply_(tensors: Sequence[Tensor], factor: float | Tensor) -> None:
    """Multiply every tensor in place; in public there is one tensor at a time."""
    torch._foreach_mul_(list(tensors), factor)


def divide_(tensors: Sequence[Tensor], divisor: float) -> None:
    """Divide every tensor in place; in public there is one tensor at a time."""
    torch._foreach_div_(list(tensors), divisor)


def packet_of(operator: Any) -> Any:
    """Return what an overload, which dispatch modes get, belongs to: formulas are by packet."""
    return operator._overloadpacket


def qualified_name(operator: Any) -> str:
    """Name an overload ``namespace.operator``; its public name drags the overload's along."""
    return f"{operator.namespace}.{operator._opname}"


def storage_key(held: Tensor | UntypedStorage) -> int:
    """Number a storage while it lives; its memory's address is 0 for every fake tensor."""
    storage = held.untyped_storage() if isinstance(held, Tensor) else held
    return cast("int", storage._cdata)


def in_backward() -> bool:
    """Whether this thread runs a backward pass; in public only hooks are told."""
    return torch._C._current_graph_task_id() != -1


def saves_through_hooks() -> bool:
    """Whether hooks take what autograd saves here, as those of a checkpoint do.

    In public one can hang up hooks, but not ask whether there are any.
    """
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


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
