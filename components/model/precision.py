"""The precision of products: autocast's, where it is on."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Choose what a linear map of ``tensor`` computes in."""
    return torch.get_autocast_dtype(tensor.device.type) if _casts(tensor) else tensor.dtype


def as_given(tensor: Tensor) -> AbstractContextManager[None]:
    """Let operations on ``tensor`` take what they are given, in the precision that it has."""
    return (
        torch.autocast(tensor.device.type, enabled=False) if _casts(tensor) else nullcontext()
    )


def _casts(tensor: Tensor) -> bool:
    device = tensor.device.type  # `meta` knows no autocast
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
