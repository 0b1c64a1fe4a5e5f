"""Private names of torch's operators, and seeing them dispatched. Seen in 2.10 to 2.15.

`TorchDispatchMode` sees operators as they leave the dispatcher, after autograd and DTensor.
`FakeTensorMode` makes tensors without values that know their device; `meta` does not. At
`FakeStore` meets the process group `fake`, whose collectives return at once.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._guards import active_fake_mode as active_fake_mode
from torch._subclasses import FakeTensorMode as FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore as FakeStore
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves

_aten = torch.ops.aten

GROUPED_PRODUCT: Any = _aten._grouped_mm
"""What `torch.nn.functional.grouped_mm` calls."""
FLASH_ATTENTION: Any = _aten._scaled_dot_product_flash_attention
"""Attention on CUDA without a mask, as `scaled_dot_product_attention` chooses it."""
EFFICIENT_ATTENTION: Any = _aten._scaled_dot_product_efficient_attention
"""Attention on CUDA with a mask that is a tensor."""
CPU_ATTENTION: Any = _aten._scaled_dot_product_flash_attention_for_cpu
"""Attention on a CPU; torch has no formula for its FLOPs."""
CPU_ATTENTION_BACKWARD: Any = _aten._scaled_dot_product_flash_attention_for_cpu_backward
"""Its backward pass."""
CAST: Any = _aten._to_copy
"""What `Tensor.to` calls where the dtype changes."""
READ_NUMBER: Any = _aten._local_scalar_dense
"""What `Tensor.item` calls."""
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


def storage_key(tensor: Tensor) -> int:
    """Number a storage while it lives; its memory's address is 0 for every fake tensor."""
    return cast("int", tensor.untyped_storage()._cdata)
