"""FLOPs and least memory traffic of an operator, from the shapes that a trace has of it.

FLOPs are as in ``torch.utils.flop_counter``: products and attention, the whole of its matrix.
The least traffic reads each input once and writes each output once.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from components.profiling.trace import TraceEvent
from components.torch_internals import operators


def _grouped(rows: Tensor, stack: Tensor, *others: Any, **named: Any) -> int:
    """Count (pairs, depth) by (experts, depth, columns); of its gradient (depth, pairs) too."""
    return 2 * rows.shape[0] * rows.shape[1] * stack.shape[-1]


def _added(total: Tensor, left: Tensor, right: Tensor, *others: Any, **named: Any) -> int:
    """Count (rows, depth) by (depth, columns), whatever it is added to."""
    return 2 * left.numel() * right.shape[1]


def _mapped(inputs: Tensor, weight: Tensor, *others: Any, **named: Any) -> int:
    """Count oneDNN's linear map, (..., depth) by (rows, depth)."""
    return 2 * inputs.numel() * weight.shape[0]


def _attended(query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> int:
    """Count attention: two products for each query and key of a query head.

    Torch before 2.13 refuses fewer heads of keys than of queries.
    """
    pairs = query.shape[:-1].numel() * key.shape[-2]
    return 2 * pairs * (query.shape[-1] + value.shape[-1])


def _attended_backward(
    upstream: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any
) -> int:
    """Count its backward pass: the scores again, their gradient, and those of all three."""
    pairs = query.shape[:-1].numel() * key.shape[-2]
    return 2 * pairs * (3 * query.shape[-1] + 2 * value.shape[-1])


# These operators have no formula in torch, or not in every release, and get one here.
FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    **{
        packet: _attended_backward if "backward" in str(packet) else _attended
        for packet in flop_registry
        if "scaled_dot_product" in str(packet)
    },
    torch.ops.aten.addmm: _added,  # torch's own refuses a dtype for the sum
    torch.ops.aten.addmm_: _added,
    operators.GROUPED_PRODUCT: _grouped,
    operators.ONEDNN_LINEAR: _mapped,
    operators.CPU_ATTENTION: _attended,
    operators.CPU_ATTENTION_BACKWARD: _attended_backward,
}
_BY_NAME = {str(packet).replace(".", "::", 1): formula for packet, formula in FORMULAS.items()}
_ITEM_BYTES = {"double": 8, "long int": 8, "float": 4, "int": 4}
_ITEM_BYTES |= {"c10::BFloat16": 2, "c10::Half": 2}  # an item of any other has one: float8


def has_formula(event: TraceEvent) -> bool:
    """Whether an event is an operator that is counted, with the shapes to do it."""
    return event.name in _BY_NAME and "Input Dims" in event.args


def count(event: TraceEvent) -> tuple[int, int]:
    """Count an operator's FLOPs and least bytes; formulas ask for its first tensors alone."""
    dims: list[Any] = event.args["Input Dims"]
    shapes = list(takewhile(lambda shape: shape and isinstance(shape[0], int), dims))
    if "mm" in event.name:  # a product written to a given place has that place, too
        shapes = shapes[: 3 if "add" in event.name else 2]
    flops = _BY_NAME[event.name](*(torch.empty(shape, device="meta") for shape in shapes))
    item_bytes = [_ITEM_BYTES.get(kind, 1) for kind in event.args["Input type"]]
    read = sum(prod(shape) * item for shape, item in zip(shapes, item_bytes, strict=False))
    return flops, read + _outputs(event.name, shapes, flops) * item_bytes[0]


def _outputs(name: str, shapes: Sequence[Sequence[int]], flops: int) -> int:
    """Count the numbers that come out; a product takes two FLOPs for each and its depth."""
    if "attention" in name:
        given = shapes[1:4] if "backward" in name else shapes[:1]
        return sum(map(prod, given))
    first = shapes[1] if "add" in name else shapes[0]
    return flops // (2 * first[-1]) if first[-1] else 0
