"""Scan kernels of other libraries, called as our scans; the scans of each mixer by backend.

Their tensors are (batch, seq, heads, width). Queries, keys and values are in ``dtype``; decays,
step sizes and states are in float32. Queries are already scaled.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from components.model.mixers.mixer import join_heads
from components.model.mixers.scan import Scan, Scanned, scan_delta_rule, scan_mamba2
from components.scan_backends import ScanBackend

MAMBA_CHUNK = 256  # tokens, as in mamba_ssm's own module


def scan_delta_in_fla(*tokens: Tensor, **given: Any) -> Scanned:
    """Return outputs and last states of the delta rule with one decay per head."""
    query, key, value, log_decay, step = tokens
    changes = query, key, value, log_decay[..., 0], step[..., 0]
    return _scan_in_fla("gated_delta_rule", *changes, **given)


def scan_channels_in_fla(*tokens: Tensor, **given: Any) -> Scanned:
    """Return outputs and last states of the delta rule with a decay per key channel."""
    *others, step = tokens
    return _scan_in_fla("kda", *others, step[..., 0], **given)


def scan_mamba2_in_fla(*tokens: Tensor, **given: Any) -> Scanned:
    """Return outputs and last states of Mamba-2; heads get copies of queries and keys."""
    query, key, value, step, rate = tokens
    query, key = (tensor.expand(-1, -1, value.shape[2], -1, -1) for tensor in (query, key))
    return _scan_in_fla("simple_gla", query, key, value * step, (rate * step)[..., 0], **given)


def _scan_in_fla(
    name: str,
    *tokens: Tensor,
    resets: Bool[Tensor, "batch seq"] | None,
    dtype: torch.dtype,
    state: Tensor | None = None,
    **_: Any,  # the kernel's chunks have a size of their own
) -> Scanned:
    """Call a kernel of flash-linear-attention; it scans documents as one row of sequences."""
    value = tokens[2]
    moved = [tensor.movedim(3, 1).flatten(2, 3) for tensor in tokens]
    moved[:3] = [tensor.to(dtype) for tensor in moved[:3]]
    begin = None if state is None else state.flatten(1, 2).float()
    bounds = last = None
    if resets is not None:
        moved = [tensor.flatten(0, 1)[None] for tensor in moved]
        bounds, first, last = find_documents(resets)
        if begin is not None:
            empty = begin.new_zeros(len(bounds) - 1, *begin.shape[1:])
            begin = empty.index_copy(0, first, begin * ~resets[:, :1, None, None])
    kernel = getattr(import_module(f"fla.ops.{name}"), f"chunk_{name}")
    outputs, states = kernel(
        *moved, scale=1.0, initial_state=begin, output_final_state=True, cu_seqlens=bounds
    )
    outputs = outputs.reshape(len(value), -1, *value.shape[1:3], value.shape[-1])
    states = states if last is None else states[last]
    states = states.unflatten(1, value.shape[1:3])
    return outputs.movedim(1, 3).to(value.dtype), states.to(value.dtype)


def find_documents(
    resets: Bool[Tensor, "batch seq"],
) -> tuple[Int[Tensor, " bounds"], Int[Tensor, " batch"], Int[Tensor, " batch"]]:
    """Return the bounds of all rows' documents, and the first and last document of each row."""
    starts = resets.clone()
    starts[:, 0] = True
    bounds = F.pad(starts.flatten().nonzero()[:, 0], (0, 1), value=starts.numel())
    counts = starts.sum(-1)
    ends = counts.cumsum(0)
    return bounds, ends - counts, ends - 1


def scan_in_mamba(
    *tokens: Tensor,
    resets: Bool[Tensor, "batch seq"] | None,
    dtype: torch.dtype,
    state: Tensor | None = None,
    **_: Any,
) -> Scanned:
    """Return outputs and last states of Mamba-2 by its authors' kernel, mamba_ssm."""
    query, key, value, step, rate = tokens
    kernel = import_module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined
    outputs, states = kernel(
        join_heads(value).to(dtype),
        join_heads(step)[..., 0],
        rate[0, :, :, 0, 0].flatten(),
        join_heads(key).to(dtype),
        join_heads(query).to(dtype),
        MAMBA_CHUNK,
        initial_states=None if state is None else state.flatten(1, 2).mT.float(),
        seq_idx=None if resets is None else resets.cumsum(-1, dtype=torch.int32),
        return_final_states=True,
    )
    outputs = outputs.unflatten(2, value.shape[1:3]).movedim(1, 3)
    states = states.mT.unflatten(1, value.shape[1:3])
    return outputs.to(value.dtype), states.to(value.dtype)


Scans = Mapping[ScanBackend, Scan]
DELTA_SCANS: Scans = {"torch": scan_delta_rule, "fla": scan_delta_in_fla}
KIMI_SCANS: Scans = {"torch": scan_delta_rule, "fla": scan_channels_in_fla}
MAMBA2_SCANS: Scans = {
    "torch": scan_mamba2,
    "fla": scan_mamba2_in_fla,
    "mamba_ssm": scan_in_mamba,
}
