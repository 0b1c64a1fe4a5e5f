"""A keyed permutation of ``range(size)`` that is computed, not stored.

The index is written as two digits, ``low`` below ``columns`` and ``high`` below ``rows``, with
``rows x columns`` just above ``size``. Each round adds a keyed hash of one digit to the other,
which can be undone, so every round permutes the rectangle (a generalised Feistel network: Black
and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, section 5). An image outside
``range(size)`` is permuted again until it falls inside ("cycle walking", section 4 there).
"""

import hashlib
import math
from functools import lru_cache

NUM_ROUNDS = 8
MASK = (1 << 64) - 1


@lru_cache(maxsize=1024)
def round_keys(seed: int, source: str, epoch: int) -> tuple[int, ...]:
    """Derive one 64-bit key a round from what names the permutation."""
    name = f"{seed}\0{epoch}\0{source}".encode()
    digest = hashlib.blake2b(name, digest_size=8 * NUM_ROUNDS).digest()
    return tuple(
        int.from_bytes(digest[start : start + 8], "little")
        for start in range(0, len(digest), 8)
    )


def permute(index: int, size: int, keys: tuple[int, ...]) -> int:
    """Map ``index`` to its image in ``range(size)``; distinct indices have distinct images."""
    columns = math.isqrt(size - 1) + 1
    rows = -(-size // columns)
    image = _permute_rectangle(index, rows, columns, keys)
    while image >= size:
        image = _permute_rectangle(image, rows, columns, keys)
    return image


def _permute_rectangle(index: int, rows: int, columns: int, keys: tuple[int, ...]) -> int:
    high, low = divmod(index, columns)
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        high = (high + _mix(low ^ first)) % rows
        low = (low + _mix(high ^ second)) % columns
    return high * columns + low


def _mix(value: int) -> int:
    """Hash 64 bits (Stafford's variant 13 of MurmurHash3's finaliser, 2011)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
