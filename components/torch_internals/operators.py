"""Operators of torch by the names they are registered under, and on many tensors at once.

An operator that `torch.ops` has under a private name is what a public function calls in the
end; who counts or replaces operators meets them under these names. All were seen in 2.10 to
2.15.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

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
    """Map (..., depth) by (rows, depth) in oneDNN, ``inputs @ weight.T + bias``.

    `torch.nn.functional.linear` goes to MKL for float32, and no setting sends it elsewhere.
    """
    return cast("Tensor", ONEDNN_LINEAR(inputs, weight, bias, "none", [], ""))


def has_kernel(operator: str, device: str) -> bool:
    """Whether ``operator``, such as ``aten::mm``, has a kernel of its own on a kind of device.

    Nothing public asks: an operator without one falls back, or fails when it is called.
    """
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, device.upper())


def norms(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Take the 2-norm of each tensor, in one kernel for many where the device has it.

    `torch.nn.utils.get_total_norm` gives only the norm over all.
    """
    return torch._foreach_norm(list(tensors))


def multiply_(tensors: Sequence[Tensor], factor: float | Tensor) -> None:
    """Multiply every tensor in place; in public there is one tensor at a time."""
    torch._foreach_mul_(list(tensors), factor)


def divide_(tensors: Sequence[Tensor], divisor: float) -> None:
    """Divide every tensor in place; in public there is one tensor at a time."""
    torch._foreach_div_(list(tensors), divisor)
