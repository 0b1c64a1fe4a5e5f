"""Stand-ins for a device's kernels where tensors have no values; nothing is computed.

Fake tensors are those of a CPU, whose kernels keep more than a GPU's. A stand-in makes and
saves the tensors that the device's kernel would.

    attention without a mask    flash attention (also for ``flex_attention``)
    attention with a mask       torch's memory-efficient kernel, which reads the mask
    RMSNorm                     the fused kernel: saves its input and a number a vector
    dropout                     the fused kernel: saves a byte a number
    experts                     grouped products where the layer takes them, else one by one
    Adam                        its update of all parameters at once
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import CausalBias
from typing_extensions import override

from components.model import expert_products, loss
from components.model.attention import AttentionCore, ForwardScope
from components.model.expert_products import has_grouped_kernel
from components.model.moe import Mixture
from components.torch_internals.operators import EFFICIENT_ATTENTION, FLASH_ATTENTION


@contextmanager
def device_kernels() -> Iterator[None]:
    """Take a GPU's kernels where a CPU would take its own, and blocks of its size.

    By name, as torch's mode for functions is off while a backward pass recomputes a layer.
    """
    with (
        patch.object(F, "scaled_dot_product_attention", _attend),
        patch.object(F, "rms_norm", _normalize),
        patch.object(F, "dropout", _drop),
        patch.object(loss, "BLOCKS", {}),
    ):
        yield


def even_load() -> AbstractContextManager[Any]:
    """Answer the host, which asks how many tokens an expert has, as if all had as many."""

    def answer(counts: Tensor, *, even: Sequence[int]) -> list[int]:
        return list(even)

    return patch.object(expert_products, "on_host", answer)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor:
    """Attend in the kernel that the mask allows, as torch chooses on CUDA.

    A causal mask of the lower right is no tensor that a kernel reads, but a setting.
    """
    if attn_mask is None or isinstance(attn_mask, CausalBias):
        return cast("Tensor", FLASH_ATTENTION(query, key, value, dropout_p, True)[0])
    batch, heads, length, _ = query.shape
    mask = attn_mask.expand(batch, heads, length, key.shape[2])
    saves = query.requires_grad
    found = EFFICIENT_ATTENTION(query, key, value, mask, saves, dropout_p, is_causal)
    return cast("Tensor", found[0])


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight, hidden.new_empty(hidden.shape[:-1]))
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, _ = ctx.saved_tensors
        return torch.empty_like(hidden), None if weight is None else torch.empty_like(weight)


def _normalize(
    hidden: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if weight is not None and weight.dtype != hidden.dtype:  # torch has no such fused kernel
        return torch.rms_norm(hidden, shape, weight, eps)
    apply: Callable[..., Tensor] = _FusedNorm.apply
    return apply(hidden, weight)


def _drop(
    hidden: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if not training or p == 0.0:
        return hidden
    return cast("Tensor", torch.ops.aten.native_dropout(hidden, p, True)[0])


class _FlexCore(AttentionCore):
    """Stand for ``flex_attention``, which needs no mask and keeps what flash attention does."""

    @override
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scope: ForwardScope, *, first_head: int
    ) -> Tensor:
        return _attend(query, key, value, is_causal=True)


class _MixtureOnDevice(Mixture):
    """Choose as on a device that has grouped products."""

    @override
    def _has_kernel(self, tokens: Tensor) -> bool:
        return True


def replace_parts(model: nn.Module, device: str) -> None:
    """Put in what ``device`` would choose by its nature and a fake tensor cannot."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is AttentionCore and _is_flex(part, device):
                core = _FlexCore(dropout=part.dropout, backend=part.backend)
                setattr(parent, name, core.train(part.training))
            if type(part) is Mixture and has_grouped_kernel(device):
                setattr(parent, name, _MixtureOnDevice(path=part.path).train(part.training))


def _is_flex(core: AttentionCore, device: str) -> bool:
    if core.backend == "auto":
        return device == "cuda" and core.dropout == 0
    return core.backend == "flex" and device != "cpu"  # where it has no backward pass
