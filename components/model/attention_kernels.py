"""Calls of attention's kernels: torch's scaled dot product, and compiled `flex_attention`."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from components.attention_backends import ACCELERATORS, KEY, Backend
from components.model.torch_compile import compile_for
from components.torch_internals.selective import unseen_by_any

ScoreChange = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
_RANDOM = 2**31  # so many numbers `_scrambled` gives
_SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "overrideable": SDPBackend.OVERRIDEABLE,
    "math": SDPBackend.MATH,
}


def _lacking(device: str) -> Sequence[Backend]:
    """List backends that this machine's device has not: cuDNN's are for Hopper, not for AMD.

    A fake tensor may say that it is on a device where there is none, which is then a new one.
    """
    if device != "cuda" or not torch.cuda.is_available():
        return ()
    least: dict[Backend, tuple[int, int]] = {"flash": (8, 0), "cudnn": (9, 0)}
    if torch.version.hip:  # whose capabilities are other numbers
        return ("cudnn",)
    here = torch.cuda.get_device_capability()
    return tuple(backend for backend, capability in least.items() if here < capability)


_once: Any = torch.compiler.assume_constant_result  # a graph asks when it is made
lacking: Callable[[str], Sequence[Backend]] = _once(_lacking)


def scaled_dot_product(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    kernels: Sequence[Backend],
    mask: Tensor | None,
    dropout: float,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Attend in the first of ``kernels`` that takes the tensors; of none torch chooses.

    Without a ``mask`` the last query is at the place of the last key, and all see keys up to
    their own. Values narrower than keys are filled up with zeros: flash kernels want one width.
    """
    missing = key.shape[-1] - value.shape[-1]
    wide = F.pad(value, (0, missing)) if missing > 0 else value
    mixed = of_one_width(query, key, wide, kernels=kernels, mask=mask, dropout=dropout)
    return mixed[..., : value.shape[-1]] if missing > 0 else mixed


def of_one_width(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    *,
    kernels: Sequence[Backend],
    mask: Tensor | None,
    dropout: float,
) -> Float[Tensor, "batch heads queries head_dim"]:
    """Attend as `scaled_dot_product` does."""
    if mask is None and query.shape[2] < key.shape[2]:
        # Its own numbers are none that recomputation could keep.
        with nullcontext() if torch.compiler.is_compiling() else unseen_by_any():
            mask = causal_lower_right(query.shape[2], key.shape[2])
    allowed = [_SDPA[name] for name in kernels if name != "flex"]
    with sdpa_kernel(allowed, set_priority=True) if allowed else nullcontext():
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            enable_gqa=True,
        )


def flex(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    change: ScoreChange | None,
    blocks: BlockMask,
    dropout: float,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Attend in `flex_attention`, with dropout in two passes of it."""
    attend: Callable[..., Tensor] = flex_with_dropout if dropout else flex_once
    if query.device.type in ACCELERATORS and not torch.compiler.is_compiling():
        attend = _compiled(attend, trains=torch.is_grad_enabled())
    # A whole number is a constant of the compiler's graph, a fraction is not.
    drops = (int(dropout * _RANDOM),) if dropout else ()
    return attend(query, key, value, change, blocks, *drops)


def flex_once(
    query: Tensor, key: Tensor, value: Tensor, change: ScoreChange | None, blocks: BlockMask
) -> Tensor:
    """Attend in one pass of `flex_attention`, without dropout."""
    attend = cast("Callable[..., Tensor]", flex_attention)
    return attend(query, key, value, score_mod=change, block_mask=blocks, enable_gqa=True)


def flex_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    change: ScoreChange | None,
    blocks: BlockMask,
    drops: int,
) -> Tensor:
    """Drop weights of the softmax, of 2 ** 31 ``drops``; `flex_attention` itself cannot.

    One pass sees the kept keys alone, another all of them. With weights e over their sums, the
    first gives sum(kept e v) / sum(kept e), and the two normalizers sum(kept e) / sum(e).
    """
    seed = torch.randint(_RANDOM, (), dtype=torch.int32, device=query.device)
    heads, queries = query.shape[1], query.shape[2]

    def kept(
        score: Tensor, batch: Tensor, head: Tensor, place: Tensor, other: Tensor
    ) -> Tensor:
        changed = score if change is None else change(score, batch, head, place, other)
        row = (batch * heads + head) * queries + place
        number = _scrambled(_scrambled(row + seed) + other)
        return torch.where(number < drops, -torch.inf, changed)

    attend = cast("Callable[..., Any]", flex_attention)
    settings = {"block_mask": blocks, "enable_gqa": True, "return_aux": AuxRequest(lse=True)}
    mixed, of_kept = attend(query, key, value, score_mod=kept, **settings)
    whole, of_all = attend(query, key, value, score_mod=change, **settings)
    share = (of_kept.lse - of_all.lse).exp() / (1 - drops / _RANDOM)
    # An output without a gradient fails in the compiler (torch 2.11 to 2.14): it has zeros.
    return cast("Tensor", mixed * share[..., None].to(mixed.dtype) + 0 * whole)


def _scrambled(number: Tensor) -> Tensor:
    """Turn 32-bit integers into others that look random, from 0 to 2 ** 31 - 1.

    The finalizer of MurmurHash3 (Appleby, github.com/aappleby/smhasher), whose shifts are of
    unsigned integers; those of torch keep the sign, which the masks take away.
    """
    number = number ^ ((number >> 16) & 0xFFFF)
    number = number * (0x85EBCA6B - 2**32)
    number = number ^ ((number >> 13) & 0x7FFFF)
    number = number * (0xC2B2AE35 - 2**32)
    return (number ^ ((number >> 16) & 0xFFFF)) & 0x7FFFFFFF


def flex_of_any(*given: Any) -> Tensor:
    """Attend as `flex_once` does: torch counts the graphs of a function by its code."""
    return flex_once(*given)


@cache
def _compiled(attend: Callable[..., Tensor], *, trains: bool) -> Callable[..., Tensor]:
    """Compile `flex_attention`; uncompiled it makes the whole matrix of scores.

    Training has batches of one shape, and one graph. Held-out windows are of any length: at
    most four graphs serve all of them (one row or more, one block of the mask or more), and
    none is training's.
    """
    remedy = "name another backend, and tell us the recipe"
    given = attend if trains or attend is not flex_once else flex_of_any
    return compile_for(KEY, given, dynamic=not trains, remedy=remedy)
