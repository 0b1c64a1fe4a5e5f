"""Initial weights that depend only on the seed and the parameter, never on the layout.

A weight is drawn in blocks of rows. Each block has its own generator, seeded by a hash of
(seed, global parameter name, block), so a rank can draw its rows without the other rows. Values
are drawn in float32 on the CPU: other devices have other generators.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

_BLOCK_ROWS = 1_024


def draw_rows(
    name: str,
    shape: Sequence[int],
    *,
    first_row: int,
    last_row: int,
    seed: int,
    std: float,
    cutoff: float | None = None,
) -> Float[Tensor, "rows columns"]:
    """Draw rows ``first_row`` up to (not including) ``last_row`` of a weight.

    ``shape`` is global. Rows are vectors along the last dimension, numbered over all others:
    row ``expert * dim + i`` of a stack. Values are within ``cutoff`` standard deviations from
    0.
    """
    rows, columns = math.prod(shape[:-1]), shape[-1]
    if std == 0.0:
        return torch.zeros(last_row - first_row, columns)
    drawn = torch.empty(last_row - first_row, columns, dtype=torch.float32, device="cpu")
    for block in range(first_row // _BLOCK_ROWS, math.ceil(last_row / _BLOCK_ROWS)):
        start, end = block * _BLOCK_ROWS, min((block + 1) * _BLOCK_ROWS, rows)
        first, last = max(first_row, start), min(last_row, end)
        part = drawn[first - first_row : last - first_row]
        # Always draw the whole block: values depend on how many the generator draws.
        whole = part if (first, last) == (start, end) else drawn.new_empty(end - start, columns)
        digest = hashlib.blake2b(f"{seed}/{name}/{block}".encode(), digest_size=8).digest()
        # Signed: `manual_seed` accepts the full range of signed 64-bit integers.
        generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest, signed=True))
        whole.normal_(std=std, generator=generator)
        if cutoff is not None:
            _draw_again(whole, std=std, cutoff=cutoff, generator=generator)
        if whole is not part:
            part.copy_(whole[first - start : last - start])
    return drawn


def _draw_again(
    values: Tensor, *, std: float, cutoff: float, generator: torch.Generator
) -> None:
    """Redraw values beyond the cutoff (27 of 10,000 for 3 deviations) until none is left."""
    while (beyond := values.abs() > cutoff * std).any():
        redrawn = values.new_empty(int(beyond.sum()))
        values[beyond] = redrawn.normal_(std=std, generator=generator)
