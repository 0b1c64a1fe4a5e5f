"""FLOPs of operators: products, and attention with its whole matrix, by torch's conventions."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from components.torch_internals import operators


def _grouped(rows: Tensor, stack: Tensor, *others: Any, **named: Any) -> int:
    """Count (pairs, depth) x (experts, depth, columns); (depth, pairs) in the gradient."""
    return 2 * rows.shape[0] * rows.shape[1] * stack.shape[-1]


def _added(total: Tensor, left: Tensor, right: Tensor, *others: Any, **named: Any) -> int:
    """Count a product of (rows, depth) and (depth, columns). The addition is not counted."""
    return 2 * left.numel() * right.shape[1]


def _mapped(inputs: Tensor, weight: Tensor, *others: Any, **named: Any) -> int:
    """Count oneDNN's linear map of (..., depth) and (rows, depth)."""
    return 2 * inputs.numel() * weight.shape[0]


def _attended(query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> int:
    """Count attention: two products for each query and key of a query head.

    Torch before 2.13 requires as many key heads as query heads.
    """
    pairs = query.shape[:-1].numel() * key.shape[-2]
    return 2 * pairs * (query.shape[-1] + value.shape[-1])


def _attended_backward(
    upstream: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any
) -> int:
    """Count attention backward: scores again, their gradient, gradients of q, k and v."""
    pairs = query.shape[:-1].numel() * key.shape[-2]
    return 2 * pairs * (3 * query.shape[-1] + 2 * value.shape[-1])


# Operators without a formula in torch, or in some of its releases.
FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    **{
        packet: _attended_backward if "backward" in str(packet) else _attended
        for packet in flop_registry
        if "scaled_dot_product" in str(packet)
    },
    torch.ops.aten.addmm: _added,  # torch's own formula fails with a dtype for the sum
    torch.ops.aten.addmm_: _added,
    operators.GROUPED_PRODUCT: _grouped,
    operators.ONEDNN_LINEAR: _mapped,
    operators.CPU_ATTENTION: _attended,
    operators.CPU_ATTENTION_BACKWARD: _attended_backward,
}
_NAMES = {str(packet).replace(".", "::", 1) for packet in FORMULAS}


def has_formula(operator: str) -> bool:
    """Return whether an operator, such as ``aten::mm``, is a product or attention."""
    return operator in _NAMES
