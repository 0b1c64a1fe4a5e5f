"""Attention kernels: calls of torch's scaled dot product and of compiled `flex_attention`."""

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
_RANDOM = 2**31  # number of values of `_scrambled`
_SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "overrideable": SDPBackend.OVERRIDEABLE,
    "math": SDPBackend.MATH,
}


def _lacking(device: str) -> Sequence[Backend]:
    """List backends that this GPU lacks (cuDNN needs Hopper, not AMD); none without a GPU."""
    if device != "cuda" or not torch.cuda.is_available():
        return ()
    minimum: dict[Backend, tuple[int, int]] = {"flash": (8, 0), "cudnn": (9, 0)}
    if torch.version.hip:  # AMD capabilities have other numbers
        return ("cudnn",)
    actual = torch.cuda.get_device_capability()
    return tuple(backend for backend, capability in minimum.items() if actual < capability)


_once: Any = torch.compiler.assume_constant_result  # called once, while the compiler traces
lacking: Callable[[str], Sequence[Backend]] = _once(_lacking)


def scaled_dot_product(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    kernels: Sequence[Backend],
    mask: Tensor | None,
    dropout: float,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention in the first of ``kernels`` that supports the tensors.

    If ``kernels`` is empty, torch chooses. Without a ``mask``, attention is causal and the last
    query is at the last key. Narrow values are padded: flash kernels need equal widths. With
    ``sinks``, which need a mask, a key has the sink as its score and zeros as its value.
    """
    if sinks is not None:
        assert mask is not None
        column = sinks.to(mask.dtype)[:, None, None].expand(len(mask), -1, mask.shape[2], 1)
        mask = torch.cat((mask.expand(-1, len(sinks), -1, -1), column), -1)
        key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
    missing = key.shape[-1] - value.shape[-1]
    padded = F.pad(value, (0, missing)) if missing > 0 else value
    mixed = attend_equal_widths(query, key, padded, kernels=kernels, mask=mask, dropout=dropout)
    return mixed[..., : value.shape[-1]] if missing > 0 else mixed


def attend_equal_widths(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    *,
    kernels: Sequence[Backend],
    mask: Tensor | None,
    dropout: float,
) -> Float[Tensor, "batch heads queries head_dim"]:
    """Compute `scaled_dot_product` for values as wide as keys."""
    if mask is None and query.shape[2] < key.shape[2]:
        # Recomputation must not record the tensors that this mask creates.
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


def attend_with_flex(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    change: ScoreChange | None,
    blocks: BlockMask,
    dropout: float,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention with `flex_attention`; dropout takes two passes."""
    attend: Callable[..., Tensor] = flex_with_dropout if dropout else flex_once
    if query.device.type in ACCELERATORS and not torch.compiler.is_compiling():
        attend = _compiled(attend, trains=torch.is_grad_enabled())
    # The compiler's graph treats an integer as a constant, but not a float.
    drops = (int(dropout * _RANDOM),) if dropout else ()
    given = () if sinks is None else (sinks,)
    return attend(query, key, value, change, blocks, *drops, *given)


def flex_once(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    change: ScoreChange | None,
    blocks: BlockMask,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute attention in one pass of `flex_attention`, without dropout.

    With weights e, the results are sum(e v) / sum(e). A sink s multiplies them by
    sum(e) / (sum(e) + exp(s)).
    """
    attend = cast("Callable[..., Any]", flex_attention)
    settings: dict[str, Any] = {"score_mod": change, "block_mask": blocks, "enable_gqa": True}
    if sinks is None:
        return cast("Tensor", attend(query, key, value, **settings))
    mixed, aux = attend(query, key, value, **settings, return_aux=AuxRequest(lse=True))
    share = torch.sigmoid(aux.lse - sinks.to(aux.lse.dtype)[:, None])
    return cast("Tensor", mixed * share[..., None].to(mixed.dtype))


def flex_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    change: ScoreChange | None,
    blocks: BlockMask,
    drops: int,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute attention with dropout, which `flex_attention` itself does not support.

    ``drops`` of 2 ** 31 softmax weights are dropped. One pass reads the retained keys only, the
    other all keys. With weights e, the first pass gives sum(retained e v) / sum(retained e);
    the normalizers of both passes give sum(retained e) / sum(e). Sinks are added to sum(e).
    """
    seed = torch.randint(_RANDOM, (), dtype=torch.int32, device=query.device)
    heads, queries = query.shape[1], query.shape[2]

    def drop_scores(
        score: Tensor, batch: Tensor, head: Tensor, place: Tensor, other: Tensor
    ) -> Tensor:
        changed = score if change is None else change(score, batch, head, place, other)
        row = (batch * heads + head) * queries + place
        number = _scrambled(_scrambled(row + seed) + other)
        return torch.where(number < drops, -torch.inf, changed)

    attend = cast("Callable[..., Any]", flex_attention)
    settings = {"block_mask": blocks, "enable_gqa": True, "return_aux": AuxRequest(lse=True)}
    mixed, saved_aux = attend(query, key, value, score_mod=drop_scores, **settings)
    full, full_aux = attend(query, key, value, score_mod=change, **settings)
    total = full_aux.lse
    if sinks is not None:
        total = torch.logaddexp(total, sinks.to(total.dtype)[:, None])
    share = (saved_aux.lse - total).exp() / (1 - drops / _RANDOM)
    # The compiler fails on an output without a gradient (torch 2.11 to 2.14): add 0 * full.
    return cast("Tensor", mixed * share[..., None].to(mixed.dtype) + 0 * full)


def _scrambled(number: Tensor) -> Tensor:
    """Hash 32-bit integers to pseudorandom integers from 0 to 2 ** 31 - 1.

    The finalizer of MurmurHash3 (Appleby, github.com/aappleby/smhasher) shifts unsigned
    integers; torch's shifts extend the sign, so masks clear those bits.
    """
    number = number ^ ((number >> 16) & 0xFFFF)
    number = number * (0x85EBCA6B - 2**32)
    number = number ^ ((number >> 13) & 0x7FFFF)
    number = number * (0xC2B2AE35 - 2**32)
    return (number ^ ((number >> 16) & 0xFFFF)) & 0x7FFFFFFF


def flex_of_any(*given: Any) -> Tensor:
    """Call `flex_once`: torch limits graphs per code object, so this has its own limit."""
    return flex_once(*given)


@cache
def _compiled(attend: Callable[..., Tensor], *, trains: bool) -> Callable[..., Tensor]:
    """Compile `flex_attention`; uncompiled, it allocates the whole matrix of scores.

    Training batches have one shape and one graph. Held-out windows have any length: at most
    four more graphs (one row or more, one mask block or more).
    """
    remedy = "name another backend, and tell us the recipe"
    function = attend if trains or attend is not flex_once else flex_of_any
    return compile_for(KEY, function, dynamic=not trains, remedy=remedy)
