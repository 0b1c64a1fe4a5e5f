"""Private names of torch's operators, dispatch, autograd and compiler. Checked in 2.10 to 2.15.

`TorchDispatchMode` intercepts operators below autograd and DTensor. `FakeTensorMode` makes
tensors without values that have a device, unlike `meta` tensors. `FakeStore` is the store of
the process group `fake`, which returns from collectives at once. `checkpoint` registers hooks
on a module; the public functions wrap the module and change its parameters' names.
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
"""Attention on CUDA without a mask, chosen by `scaled_dot_product_attention`."""
EFFICIENT_ATTENTION: Any = _aten._scaled_dot_product_efficient_attention
"""Attention on CUDA in any precision."""
MATH_ATTENTION: Any = _aten._scaled_dot_product_attention_math
"""Attention by its formula, with the whole matrix of scores."""
CPU_ATTENTION: Any = _aten._scaled_dot_product_flash_attention_for_cpu
"""Attention on a CPU; torch has no formula for its FLOPs."""
CPU_ATTENTION_BACKWARD: Any = _aten._scaled_dot_product_flash_attention_for_cpu_backward
"""Backward pass of CPU_ATTENTION."""
CAST: Any = _aten._to_copy
"""What `Tensor.to` calls if the dtype changes."""
READ_NUMBER: Any = _aten._local_scalar_dense
"""What `Tensor.item` calls."""
ADD_TO_WIDER: Any = _aten.addmm.dtype_out
"""What `torch.addmm` calls with a sum of a wider dtype."""
WAIT: Any = torch.ops._c10d_functional.wait_tensor
"""The end of a functional collective."""
# A build may lack the library, or the parts of it that torch uses.
ONEDNN_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's linear map; None in a build without oneDNN."""


def linear_by_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply (..., depth) by (rows, depth) in oneDNN; no setting makes torch use it."""
    return cast("Tensor", ONEDNN_LINEAR(inputs, weight, bias, "none", [], ""))


def has_kernel(operator: str, device: str) -> bool:
    """Return whether ``operator``, such as ``aten::mm``, has a kernel for ``device``."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, device.upper())


def compute_norms(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return each tensor's 2-norm, in one kernel; `get_total_norm` returns only the total."""
    return torch._foreach_norm(list(tensors))


def multiply_(tensors: Sequence[Tensor], factor: float | Tensor) -> None:
    """Multiply all tensors in place; the public API takes one tensor at a time."""
    torch._foreach_mul_(list(tensors), factor)


def divide_(tensors: Sequence[Tensor], divisor: float) -> None:
    """Divide all tensors in place; the public API takes one tensor at a time."""
    torch._foreach_div_(list(tensors), divisor)


def packet_of(operator: Any) -> Any:
    """Return an overload's packet: modes receive overloads, formulas belong to packets."""
    return operator._overloadpacket


def qualified_name(operator: Any) -> str:
    """Return ``namespace.operator``; an overload's public name adds the overload's own name."""
    return f"{operator.namespace}.{operator._opname}"


def storage_key(held: Tensor | UntypedStorage) -> int:
    """Return a storage's key while it exists; the data pointer of all fake tensors is 0."""
    storage = held.untyped_storage() if isinstance(held, Tensor) else held
    return cast("int", storage._cdata)


def in_backward() -> bool:
    """Return whether this thread runs a backward pass; the public API informs only hooks."""
    return torch._C._current_graph_task_id() != -1


def saves_through_hooks() -> bool:
    """Return whether saved-tensor hooks are active, such as a checkpoint's hooks."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def keeps_graph() -> bool:
    """Return whether the running backward pass has ``retain_graph``; `Function` lacks it."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def will_run(node: Any) -> bool:
    """Return whether the running backward pass computes the gradient of ``node``.

    ``node`` is a next function. ``needs_input_grad`` also counts gradients outside of this
    pass. True also for leaves that the pass lists as inputs: torch does not report those.
    """
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return True


def count_graphs() -> int:
    """Return the number of graphs that this process has compiled, recompilations included."""
    return int(counters["stats"]["unique_graphs"])


def fail_at_recompile_limit() -> None:
    """Raise `RecompileLimitHit` at torch's limit of graphs; by default torch only warns."""
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def recompile_limit() -> int:
    """Return the maximum number of graphs of one function (for several shapes or modes)."""
    return int(torch._dynamo.config.recompile_limit)
