"""Megatron's token files: ``PREFIX.bin`` holds the ids alone, ``PREFIX.idx`` where they part.

The index, all little-endian: 9 bytes of magic, version (uint64), code of the ids' type (uint8),
number of sequences and of document borders (uint64); then the length of each sequence (int32),
its first byte (int64), and the borders: the first sequence of each document and the end
(int64). As written by megatron-core 0.16.1, core/datasets/indexed_dataset.py. Sequences that do
not follow one another without gaps, or with modes behind, are not read here.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from components.data.files import replace_atomically
from components.data.token_file import Tokens, Width, little_endian
from components.errors import RecipeError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
INT32, UINT16 = 4, 8
WIDTHS: dict[int, Width] = {INT32: "int32", UINT16: "uint16"}
# Ids below 2**31 have the same bytes in both: the .bin file of a uint32 token file is itself.
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
    def documents(self) -> int:
        return len(self.borders) - 1

    def document_ends(self, first: int, last: int) -> Borders:
        """Count the tokens up to and with each of the documents ``first`` to ``last - 1``."""
        sequences = self.borders[first + 1 : last + 1]
        ends = np.full(len(sequences), self.tokens, dtype=np.int64)
        inside = sequences < len(self.first_bytes)
        item_bytes = little_endian(self.width).itemsize
        ends[inside] = self.first_bytes[sequences[inside]] // item_bytes
        return ends


def read_index(prefix: str, where: str) -> MegatronIndex:
    """Map and check ``PREFIX.idx``, all of it, and the size of ``PREFIX.bin``.

    Raises:
        RecipeError: not such an index, or one that is cut short, too long, of another version
            or type, at odds with itself, or not of the ``.bin`` file beside it.
    """
    path, bin_file = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    remedy = "write it anew with Megatron"
    try:
        width, lengths, first_bytes, borders = _map_parts(path)
        item_bytes = little_endian(width).itemsize
        total_bytes = _check_sequences(lengths, first_bytes, borders, item_bytes)
    except OSError as error:
        raise RecipeError(where, f"{path} cannot be read: {error.strerror}", remedy) from error
    except ValueError as error:
        raise RecipeError(where, f"{path} {error}", remedy) from None
    if not bin_file.is_file():
        way_out = "name a prefix that has .bin and .idx"
        raise RecipeError(where, f"{bin_file} is missing", way_out)
    if wrong := _wrong_size(bin_file.stat().st_size, total_bytes, "its index says"):
        raise RecipeError(where, f"{bin_file} {wrong}", remedy)
    return MegatronIndex(bin_file, width, total_bytes // item_bytes, first_bytes, borders)


def write_index(prefix: Path, tokens: Tokens, width: Width, *, eod_id: int) -> None:
    """Write ``PREFIX.idx`` for a ``.bin`` file of ``tokens``: a document ends with each end id.

    An id of the end inside a text ends a document too, as it does for every reader.
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
    """Map lengths, first bytes and borders, as the header asks for.

    Raises:
        ValueError: what is wrong with the header, to stand behind the file's name.
    """
    if path.stat().st_size < HEADER.size:
        raise ValueError("is shorter than its header")
    content = np.memmap(path, dtype=np.uint8, mode="r")
    head = content[: HEADER.size].tobytes()
    magic, version, code, num_sequences, num_borders = HEADER.unpack(head)
    if magic != MAGIC:
        raise ValueError(f"begins with {magic!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"has version {version}, {VERSION} is read here")
    if code not in WIDTHS:
        known = ", ".join(f"{number} ({width})" for number, width in WIDTHS.items())
        raise ValueError(f"has ids of type {code}; read here are {known}")
    sizes = (4 * num_sequences, 8 * num_sequences, 8 * num_borders)
    if wrong := _wrong_size(len(content), HEADER.size + sum(sizes), "its header asks for"):
        raise ValueError(wrong)
    lengths, first_bytes, borders, _ = np.split(content[HEADER.size :], np.cumsum(sizes))
    return WIDTHS[code], lengths.view("<i4"), first_bytes.view("<i8"), borders.view("<i8")


def _check_sequences(
    lengths: npt.NDArray[np.int32], first_bytes: Borders, borders: Borders, item_bytes: int
) -> int:
    """Check that sequences follow one another, and documents hold all; return their end.

    Raises:
        ValueError: what is damaged, to stand behind the file's name.
    """
    total = 0
    for start in range(0, len(lengths), BLOCK):
        block = lengths[start : start + BLOCK].astype(np.int64)
        ends = total + np.cumsum(block) * item_bytes
        begins = np.concatenate([np.array([total]), ends[:-1]])
        wrong = (block < 0) | (first_bytes[start : start + BLOCK] != begins)
        if wrong.any():
            number = start + int(np.argmax(wrong))
            problem = f"sequence {number:,} does not begin where the one before ends"
            raise ValueError(f"is damaged: {problem}")
        total = int(ends[-1])
    good = len(borders) > 0 and borders[0] == 0 and borders[-1] == len(lengths)
    for start in range(0, len(borders), BLOCK):
        good = good and bool((np.diff(borders[start : start + BLOCK + 1]) >= 0).all())
    if not good:
        problem = f"its documents do not hold the {len(lengths):,} sequences in order"
        raise ValueError(f"is damaged: {problem}")
    return total


def _wrong_size(found: int, expected: int, who: str) -> str | None:
    if found == expected:
        return None
    problem = f"is {'truncated' if found < expected else 'too long'}: {found:,} bytes"
    return f"{problem}, {who} {expected:,}"
