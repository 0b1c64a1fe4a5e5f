"""Attention windows: how many keys the queries of each layer see at most, their own too.

A query at place q sees the keys at q - w < k <= q, as ``sliding_window`` of Hugging Face does.
"""

from collections.abc import Sequence
from functools import cache
from typing import Literal

from components.errors import RecipeError

Window = int | Literal["full"]
KEY = "model.attention.windows"
_PATTERN = "write them from layer 0 on, as [4096, 4096, 4096, full]"


def window_of(windows: Sequence[Window], layer: int) -> int | None:
    """Return the window of a layer, by a pattern that begins anew at its end; None is none."""
    window = windows[layer % len(windows)]
    return None if window == "full" else window


@cache
def visible_keys(windows: tuple[Window, ...], num_layers: int, length: int) -> tuple[int, ...]:
    """List how many keys a query of each layer sees at most: its window, or all."""
    return tuple(min(window_of(windows, n) or length, length) for n in range(num_layers))


@cache
def causal_keys(windows: tuple[Window, ...], num_layers: int, length: int) -> float:
    """Count the keys that a query sees in all layers together, in the mean over queries.

    Of s tokens all see w keys but the first w, which see half as many: w - w^2 / 2 s. Where
    w is s it is the usual half.
    """
    seen = visible_keys(windows, num_layers, length)
    return sum(keys - keys * keys / (2 * length) for keys in seen)


def check_windows(windows: Sequence[object]) -> None:
    """Raise a RecipeError for a pattern that is empty, or has what is no window."""
    if not windows:
        raise RecipeError(KEY, "names no layer", _PATTERN)
    for index, window in enumerate(windows):
        counts = isinstance(window, int) and not isinstance(window, bool) and window > 0
        if not (counts or window == "full"):
            problem = f"{window!r} is neither a number of keys nor full"
            raise RecipeError(f"{KEY}[{index}]", problem, _PATTERN)
