"""Private names of selective activation checkpointing: operators, and what is kept of each.

Seen in 2.10 to 2.15. Operators are overloads, as torch's dispatcher knows them. Of those that
write into what they are given nothing can be kept: who called them reads their argument.
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
"""The router's: few numbers, and a token must meet the same experts again."""
PRODUCTS = frozenset(getattr(_aten, name).default for name in _PRODUCTS) | frozenset(
    [] if ONEDNN_LINEAR is None else [ONEDNN_LINEAR.default]
)
FLEX_ATTENTION: Any = torch.ops.higher_order.flex_attention
"""Attention in a graph of torch's compiler; it has no schema, and drops nothing."""
KEPT = ATTENTION | PRODUCTS | COLLECTIVES | {CHOICE, FLEX_ATTENTION}


def dropped_fraction(operator: Any, given: Sequence[Any], named: Mapping[str, Any]) -> float:
    """Return what part of the attention weights a kernel is called to drop."""
    places = [argument.name for argument in operator._schema.arguments]
    place = places.index("dropout_p")
    return float(given[place] if place < len(given) else named.get("dropout_p", 0.0))


def forget(record: Mapping[Any, Any], result: Tensor) -> None:
    """Let the newest entries of torch's ``record`` that are ``result`` keep its shape alone."""
    key = storage_key(result)
    for entries in record.values():
        last = len(entries) - 1
        kept = [one for one in tree_leaves(entries[last]) if isinstance(one, _VersionWrapper)]
        if any(isinstance(one.val, Tensor) and storage_key(one.val) == key for one in kept):
            entries[last] = tree_map_only(_VersionWrapper, _ShapeAlone, entries[last])


class _ShapeAlone:
    """Stands in torch's record for a tensor whose numbers nobody will read."""

    def __init__(self, wrapped: Any) -> None:
        self._shape = Shape.of(wrapped.val)

    def get_val(self, allow_cache_entry_mutation: bool) -> Tensor:
        return self._shape.empty()


class Shape(NamedTuple):
    """What is left of a tensor without its numbers."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: Tensor) -> "Shape":
        return Shape(tensor.size(), tensor.stride(), tensor.dtype, tensor.device)

    def empty(self) -> Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


def unseen() -> AbstractContextManager[Any]:
    """Let the innermost mode of torch's dispatcher not see what is done inside."""
    return _pop_mode_temporarily()


def unseen_by_any() -> AbstractContextManager[Any]:
    """Let no mode see it: torch makes no subclass of a tensor that one has seen."""
    return _disable_current_modes()


def allow_side_effects_once() -> None:
    """Let a compiled checkpoint lend weights and record routes, in its forward pass alone."""
    torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
