"""Shingles: 64-bit hashes of every n-gram of words in a text, the same on every machine.

A word is a run of letters, marks and digits. Case and diacritics are ignored, and all digits
are equal, so that a date or a counter does not hide a copy. In scripts without spaces (Han,
kana) each character is a word. The rules use Unicode 3.2, which every Python version contains
unchanged. A newer character counts as a letter.
"""

import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]
Codes = np.ndarray[tuple[int], np.dtype[np.uint32]]

UNICODE = unicodedata.ucd_3_2_0
CODE_POINTS, LAST_ASSIGNED = 0x110000, 0x30000
SEPARATOR = 0
OWN_WORD = np.uint32(1 << 31)
# Hiragana and katakana; Han with its first extension; its compatibility and later forms.
OWN_WORDS = ((0x3040, 0x3100), (0x3400, 0xA000), (0xF900, 0xFB00), (0x20000, LAST_ASSIGNED))
PIECE_CHARACTERS = 1 << 16
# Odd, so that it has an inverse modulo 2^64: 2^64 divided by the golden ratio.
BASE = 0x9E3779B97F4A7C15
RUN_BASE = np.uint64(0xD1342543DE82EF95)


def hash_shingles(text: str, ngram: int) -> Hashes:
    """Hash each run of ``ngram`` words, in order: ``[shingles]``.

    A shorter text is a single shingle. A text without words has none.
    """
    words = np.concatenate([_hash_words(piece) for piece in _pieces(text)])
    if not len(words):
        return words
    width = min(ngram, len(words))
    count = len(words) - width + 1
    runs = np.zeros(count, np.uint64)
    for place in range(width):
        runs = runs * RUN_BASE + words[place : place + count]
    scrambled: Hashes = mix_bits(runs)
    return scrambled


def mix_bits(values: Any) -> Any:
    """Mix 64-bit values so that each input bit affects every output bit.

    The finalizer of SplitMix64 (Steele, Lea and Flood 2014, Fast splittable pseudorandom number
    generators, figure 17, with the constants of its mix64variant13).
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text after spaces, because hashing a piece takes many times its memory."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        end = start + PIECE_CHARACTERS
        cut = text.rfind(" ", start, end) + 1 or end
        yield text[start:cut]
        start = cut
    yield text[start:]


def _hash_words(text: str) -> Hashes:
    """Hash each word as a polynomial in its characters, modulo 2^64.

    The prefix sum at the word's end minus the one at its start is the word's polynomial times a
    power of the base. Multiplying by the inverse of that power removes it.
    """
    codes: Codes = _table()[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")]
    inside, alone = codes != SEPARATOR, codes >= OWN_WORD
    edge = np.ones(len(codes) + 1, np.bool_)
    edge[1:-1] = (inside[1:] != inside[:-1]) | alone[1:] | alone[:-1]
    starts = np.flatnonzero(inside & edge[:-1])
    ends = np.flatnonzero(inside & edge[1:]) + 1
    powers, inverses = _powers()
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(codes * powers[: len(codes)], out=sums[1:])
    hashes: Hashes = (sums[ends] - sums[starts]) * inverses[starts]
    return hashes


@cache
def _powers() -> tuple[Hashes, Hashes]:
    factors = np.ones((2, PIECE_CHARACTERS), np.uint64)
    factors[0, 1:], factors[1, 1:] = BASE, pow(BASE, -1, 1 << 64)
    powers, inverses = np.multiply.accumulate(factors, axis=1)
    return powers, inverses


@cache
def _table() -> Codes:
    """Return a table from each code point to its code in a word, or to the separator."""
    table = np.arange(CODE_POINTS, dtype=np.uint32)
    for point in range(LAST_ASSIGNED):
        table[point] = _code(chr(point))
    for first, end in OWN_WORDS:
        table[first:end] |= np.where(table[first:end] == SEPARATOR, np.uint32(0), OWN_WORD)
    return table


def _code(character: str) -> int:
    category = UNICODE.category(character)
    if category.startswith("N"):
        return ord("0")
    if category.startswith("L"):
        return ord(UNICODE.normalize("NFD", character.lower())[0])
    return ord(character) if category.startswith("M") or category == "Cn" else SEPARATOR
