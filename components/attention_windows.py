"""Attention windows: the most keys that a query of each layer sees, including its own.

A query at q sees the keys k with q - w < k <= q, as in Hugging Face's ``sliding_window``.
"""

from collections.abc import Sequence
from functools import cache
from typing import Literal

from components.errors import RecipeError

Window = int | Literal["full"]
KEY = "model.attention.windows"
_PATTERN = "list windows from layer 0 on, for example [4096, 4096, 4096, full]"


def window_of(windows: Sequence[Window], layer: int) -> int | None:
    """Return the window of a layer from a repeating pattern; None means no window."""
    window = windows[layer % len(windows)]
    return None if window == "full" else window


@cache
def visible_keys(windows: tuple[Window, ...], num_layers: int, length: int) -> tuple[int, ...]:
    """List the most keys that a query of each layer sees: its window, or all."""
    return tuple(min(window_of(windows, n) or length, length) for n in range(num_layers))


@cache
def causal_keys(windows: tuple[Window, ...], num_layers: int, length: int) -> float:
    """Return the mean number of keys that a query sees, summed over all layers.

    Of s tokens, the first w see w / 2 keys on average, the others w: w - w^2 / 2 s.
    """
    key_counts = visible_keys(windows, num_layers, length)
    return sum(keys - keys * keys / (2 * length) for keys in key_counts)


def check_windows(windows: Sequence[object]) -> None:
    """Raise a RecipeError if a pattern is empty, or has an invalid window."""
    if not windows:
        raise RecipeError(KEY, "the list is empty", _PATTERN)
    for index, window in enumerate(windows):
        counts = isinstance(window, int) and not isinstance(window, bool) and window > 0
        if not (counts or window == "full"):
            problem = f"{window!r} is neither a positive number of keys nor full"
            raise RecipeError(f"{KEY}[{index}]", problem, _PATTERN)
