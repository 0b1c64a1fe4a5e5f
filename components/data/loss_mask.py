"""Which targets of a sample count in the training loss; the same on whatever rank asks.

Goldfish loss, https://arxiv.org/abs/2406.10209, section 3, as swiss-ai's Megatron-LM has it
(``megatron/core/datasets/gpt_dataset.py``): a target is dropped where a table of random numbers
has less than 1 / k at the product of the h targets that end with it, modulo the table's size.
The product overflows 64 bits, and is part of the mask. It is 0 where a token of the window is,
or where its tokens have 64 factors of two together: then the table's first number decides. The
first h - 1 targets of a sample always count. Padding never counts: in packed rows it is ends of
documents behind an end.
"""

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_TABLE_SIZE, _TABLE_SEED = 1_000_003, 2_971_215_073


@dataclass(frozen=True, kw_only=True)
class LossMask:
    """Choose targets; ``one_in`` 0 drops none for what precedes it."""

    one_in: int
    window_tokens: int
    after_eod: bool
    eod_id: int
    padded: bool = False

    @property
    def counts_all(self) -> bool:
        return self.after_eod and not self.one_in and not self.padded

    def __call__(self, rows: Int[Tensor, "*batch whole"]) -> Bool[Tensor, "*batch length"]:
        """Say for each target, all tokens of ``rows`` but the first, whether it counts."""
        counted = torch.ones_like(rows[..., 1:], dtype=torch.bool)
        if not self.after_eod:
            counted &= rows[..., :-1] != self.eod_id
        if self.padded:
            counted &= (rows[..., :-1] != self.eod_id) | (rows[..., 1:] != self.eod_id)
        if self.one_in and counted.shape[-1] >= self.window_tokens:
            products = rows[..., 1:].unfold(-1, self.window_tokens, 1).prod(-1)
            drawn = _table().to(rows.device)[products % _TABLE_SIZE]
            counted[..., self.window_tokens - 1 :] &= drawn >= 1 / self.one_in
        return counted


@cache
def _table() -> Float[Tensor, " size"]:
    """Draw the numbers on the CPU, whose generator is not other devices'."""
    generator = torch.Generator("cpu").manual_seed(_TABLE_SEED)
    return torch.rand(_TABLE_SIZE, generator=generator, device="cpu", dtype=torch.float32)
