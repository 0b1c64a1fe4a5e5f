"""Private torch names for selective activation checkpointing: operators with stored results.

Checked in 2.10 to 2.15. Operators are overloads, as in torch's dispatcher. The results of
operators that write into their arguments cannot be stored: callers read the argument.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode_temporarily
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import _VersionWrapper

from components.torch_internals.operators import ONEDNN_LINEAR, storage_key

_aten, _sent = torch.ops.aten, torch.ops._c10d_functional
_ATTENTION = (
    "_scaled_dot_product_flash_attention",  # CUDA and Intel's GPUs
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",  # Intel's GPUs
    "_scaled_dot_product_flash_attention_for_cpu",
)
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm")
_COLLECTIVES = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")

ATTENTION = frozenset(getattr(_aten, name).default for name in _ATTENTION)
COLLECTIVES = frozenset(
    getattr(_sent, name).default for name in (*_COLLECTIVES, "all_reduce", "wait_tensor")
)
CHOICE: Any = _aten.topk.default
"""Router's choice: a small result, and recomputation must send a token to the same experts."""
PRODUCTS = frozenset(getattr(_aten, name).default for name in _PRODUCTS) | frozenset(
    [] if ONEDNN_LINEAR is None else [ONEDNN_LINEAR.default]
)
FLEX_ATTENTION: Any = torch.ops.higher_order.flex_attention
"""Attention in a graph of torch's compiler; it has no schema and no dropout."""
SAVED_OPERATORS = ATTENTION | PRODUCTS | COLLECTIVES | {CHOICE, FLEX_ATTENTION}


def dropped_fraction(operator: Any, given: Sequence[Any], named: Mapping[str, Any]) -> float:
    """Return the dropout probability in the arguments of an attention kernel."""
    places = [argument.name for argument in operator._schema.arguments]
    place = places.index("dropout_p")
    return float(given[place] if place < len(given) else named.get("dropout_p", 0.0))


def free_record(record: Mapping[Any, Any], result: Tensor) -> None:
    """Replace ``result`` by its shape in the newest entries of torch's ``record``."""
    key = storage_key(result)
    for entries in record.values():
        last = len(entries) - 1
        wrappers = [
            leaf for leaf in tree_leaves(entries[last]) if isinstance(leaf, _VersionWrapper)
        ]
        if any(
            isinstance(wrapper.val, Tensor) and storage_key(wrapper.val) == key
            for wrapper in wrappers
        ):
            entries[last] = tree_map_only(_VersionWrapper, _ShapeAlone, entries[last])


class _ShapeAlone:
    """Placeholder in torch's record for a tensor with numbers that are never read."""

    def __init__(self, wrapped: Any) -> None:
        self._shape = Shape.from_tensor(wrapped.val)

    def get_val(self, allow_cache_entry_mutation: bool) -> Tensor:
        return self._shape.create_empty()


class Shape(NamedTuple):
    """Shape, stride, dtype and device of a tensor."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def from_tensor(tensor: Tensor) -> "Shape":
        return Shape(tensor.size(), tensor.stride(), tensor.dtype, tensor.device)

    def create_empty(self) -> Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


def hide_operators() -> AbstractContextManager[Any]:
    """Hide operators in the context from the innermost dispatch mode."""
    return _pop_mode_temporarily()


def unseen_by_any() -> AbstractContextManager[Any]:
    """Hide operators in the context from all modes: torch cannot subclass a seen tensor."""
    return _disable_current_modes()


def allow_side_effects_once() -> None:
    """Allow side effects (lent weights, recorded routes) in a compiled checkpoint's forward."""
    torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
