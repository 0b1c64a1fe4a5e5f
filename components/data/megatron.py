"""Megatron token files: ``PREFIX.bin`` has only the ids, ``PREFIX.idx`` their boundaries.

The index is little-endian: 9 bytes of magic, version (uint64), code of the id type (uint8),
number of sequences and number of document borders (uint64 each); then the length of each
sequence (int32), the first byte of each sequence (int64), and the borders (int64): the first
sequence of each document, then the total. Source: megatron-core 0.16.1,
core/datasets/indexed_dataset.py. Sequences with gaps between them, and indices with modes at
the end, are rejected.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from components.data.files import replace_atomically
from components.data.token_file import TokenArray, Width, little_endian
from components.errors import RecipeError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
INT32, UINT16 = 4, 8
WIDTHS: dict[int, Width] = {INT32: "int32", UINT16: "uint16"}
# Ids below 2**31 have the same bytes in both types: a uint32 token file can be the .bin file.
CODES: dict[Width, int] = {"uint16": UINT16, "uint32": INT32, "int32": INT32}
BLOCK = 1 << 20

Borders = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MegatronIndex:
    """A checked index, mapped into memory."""

    bin_file: Path
    width: Width
    tokens: int
    first_bytes: Borders
    borders: Borders

    @property
    def num_documents(self) -> int:
        return len(self.borders) - 1

    def document_ends(self, first: int, last: int) -> Borders:
        """Return the number of tokens up to the end of documents ``first`` to ``last - 1``."""
        sequences = self.borders[first + 1 : last + 1]
        ends = np.full(len(sequences), self.tokens, dtype=np.int64)
        inside = sequences < len(self.first_bytes)
        item_bytes = little_endian(self.width).itemsize
        ends[inside] = self.first_bytes[sequences[inside]] // item_bytes
        return ends


def read_index(prefix: str, where: str) -> MegatronIndex:
    """Map ``PREFIX.idx``, check all of it, and check the size of ``PREFIX.bin``."""
    path, bin_file = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    remedy = "write it again with Megatron"
    try:
        width, lengths, first_bytes, borders = _map_parts(path)
        item_bytes = little_endian(width).itemsize
        total_bytes = _check_sequences(lengths, first_bytes, borders, item_bytes)
    except OSError as error:
        raise RecipeError(where, f"{path} cannot be read: {error.strerror}", remedy) from error
    except ValueError as error:
        raise RecipeError(where, f"{path} {error}", remedy) from None
    if not bin_file.is_file():
        missing_remedy = "set a prefix that has both a .bin and an .idx file"
        raise RecipeError(where, f"{bin_file} is missing", missing_remedy)
    if problem := _wrong_size(bin_file.stat().st_size, total_bytes, "its index states"):
        raise RecipeError(where, f"{bin_file} {problem}", remedy)
    return MegatronIndex(bin_file, width, total_bytes // item_bytes, first_bytes, borders)


def write_index(prefix: Path, tokens: TokenArray, width: Width, *, eod_id: int) -> None:
    """Write ``PREFIX.idx`` for a ``.bin`` file of ``tokens``; ``eod_id`` ends a document.

    An ``eod_id`` inside a text also ends a document, as it does for every reader.
    """
    blocks = [
        np.flatnonzero(tokens[start : start + BLOCK] == eod_id) + (start + 1)
        for start in range(0, len(tokens), BLOCK)
    ]
    ends = np.concatenate([np.empty(0, np.int64), *blocks])
    assert (int(ends[-1]) if len(ends) else 0) == len(tokens), "text behind the last document"
    starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    lengths = ends - starts
    assert not len(lengths) or int(lengths.max()) < 1 << 31, "a document beyond the format"
    count = len(ends)
    with replace_atomically(Path(f"{prefix}.idx")) as file:
        file.write(HEADER.pack(MAGIC, VERSION, CODES[width], count, count + 1))
        file.write(lengths.astype("<i4").tobytes())
        file.write((starts * little_endian(width).itemsize).astype("<i8").tobytes())
        file.write(np.arange(count + 1, dtype="<i8").tobytes())


def _map_parts(path: Path) -> tuple[Width, Any, Any, Any]:
    """Map lengths, first bytes and borders; a ValueError's text follows the file name."""
    if path.stat().st_size < HEADER.size:
        raise ValueError("is shorter than its header")
    content = np.memmap(path, dtype=np.uint8, mode="r")
    head = content[: HEADER.size].tobytes()
    magic, version, code, num_sequences, num_borders = HEADER.unpack(head)
    if magic != MAGIC:
        raise ValueError(f"starts with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"has version {version}, expected {VERSION}")
    if code not in WIDTHS:
        known = ", ".join(f"{number} ({width})" for number, width in WIDTHS.items())
        raise ValueError(f"has ids of type {code}, expected one of {known}")
    sizes = (4 * num_sequences, 8 * num_sequences, 8 * num_borders)
    if problem := _wrong_size(len(content), HEADER.size + sum(sizes), "its header states"):
        raise ValueError(problem)
    lengths, first_bytes, borders, _ = np.split(content[HEADER.size :], np.cumsum(sizes))
    return WIDTHS[code], lengths.view("<i4"), first_bytes.view("<i8"), borders.view("<i8")


def _check_sequences(
    lengths: npt.NDArray[np.int32], first_bytes: Borders, borders: Borders, item_bytes: int
) -> int:
    """Check that sequences have no gaps and documents cover all; return the total bytes."""
    total = 0
    for start in range(0, len(lengths), BLOCK):
        block = lengths[start : start + BLOCK].astype(np.int64)
        ends = total + np.cumsum(block) * item_bytes
        begins = np.concatenate([np.array([total]), ends[:-1]])
        wrong = (block < 0) | (first_bytes[start : start + BLOCK] != begins)
        if wrong.any():
            number = start + int(np.argmax(wrong))
            problem = f"sequence {number:,} does not start at the end of the sequence before it"
            raise ValueError(f"is damaged: {problem}")
        total = int(ends[-1])
    good = len(borders) > 0 and borders[0] == 0 and borders[-1] == len(lengths)
    for start in range(0, len(borders), BLOCK):
        good = good and bool((np.diff(borders[start : start + BLOCK + 1]) >= 0).all())
    if not good:
        problem = f"its documents do not contain the {len(lengths):,} sequences in order"
        raise ValueError(f"is damaged: {problem}")
    return total


def _wrong_size(actual: int, expected: int, who: str) -> str | None:
    if actual == expected:
        return None
    problem = f"is {'truncated' if actual < expected else 'too long'}: {actual:,} bytes"
    return f"{problem}, {who} {expected:,}"
