"""Attention windows: how many keys the queries of each layer see at most, their own too.

A query at place q sees the keys at q - w < k <= q, as ``sliding_window`` of Hugging Face does.
"""

from collections.abc import Sequence
from typing import Literal

from components.errors import RecipeError

Window = int | Literal["full"]
KEY = "model.attention.windows"
_PATTERN = "write them from layer 0 on, as [4096, 4096, 4096, full]"


def window_of(windows: Sequence[Window], layer: int) -> int | None:
    """Return the window of a layer, by a pattern that begins anew at its end; None is none."""
    window = windows[layer % len(windows)]
    return None if window == "full" else window


def check_windows(windows: Sequence[object]) -> None:
    """Raise a RecipeError for a pattern that is empty, or has what is no window."""
    if not windows:
        raise RecipeError(KEY, "names no layer", _PATTERN)
    for index, window in enumerate(windows):
        counts = isinstance(window, int) and not isinstance(window, bool) and window > 0
        if not (counts or window == "full"):
            problem = f"{window!r} is neither a number of keys nor full"
            raise RecipeError(f"{KEY}[{index}]", problem, _PATTERN)
