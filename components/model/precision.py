"""The precision of products: autocast's, where it is on."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    Asked = Callable[[str], bool]


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Choose what a linear map of ``tensor`` computes in."""
    return torch.get_autocast_dtype(tensor.device.type) if _casts(tensor) else tensor.dtype


def as_given(tensor: Tensor) -> AbstractContextManager[None]:
    """Let operations on ``tensor`` take what they are given, in the precision that it has."""
    return (
        torch.autocast(tensor.device.type, enabled=False) if _casts(tensor) else nullcontext()
    )


def _casts(tensor: Tensor) -> bool:
    device = tensor.device.type
    return _knows_autocast(device) and torch.is_autocast_enabled(device)


# A graph asks once, when it is made: torch's compiler in 2.10 cannot.
_constant: "Callable[[Asked], Asked]" = torch.compiler.assume_constant_result


@_constant
def _knows_autocast(device: str) -> bool:
    """Whether a kind of device has autocast; `meta` has not."""
    return torch.amp.is_autocast_available(device)
