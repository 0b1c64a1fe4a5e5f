"""Files of signatures, read as one long list of documents."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from data_prep.groups import Indices

Signatures = np.ndarray[tuple[int, int], np.dtype[np.uint32]]

SLOT = "<u4"
BLOCK_DOCUMENTS = 1 << 14


def write_header(stream: BinaryIO, documents: int, slots: int) -> None:
    """Begin a .npy file of signatures; numpy leaves room for any number of documents.

    So the header can be written again, over the first, once they are counted.
    """
    header = {"descr": SLOT, "fortran_order": False, "shape": (documents, slots)}
    npy.write_array_header_1_0(stream, header)


class SignatureFiles:
    """Documents numbered through all files, in their order; one file is open at a time."""

    def __init__(self, files: Sequence[Path], slots: int) -> None:
        self._files, self._slots = files, slots
        self._ends = np.cumsum([0, *(len(self._open(index)) for index in range(len(files)))])

    @property
    def documents(self) -> int:
        return int(self._ends[-1])

    def blocks(self) -> Iterator[tuple[int, Signatures]]:
        """Read all rows; with each block comes the number of its first document."""
        for index, begin in enumerate(self._ends[:-1]):
            rows = self._open(index)
            for start in range(0, len(rows), BLOCK_DOCUMENTS):
                yield int(begin) + start, np.array(rows[start : start + BLOCK_DOCUMENTS])

    def agreement(self, left: Indices, right: Indices) -> Any:
        """Give the share of slots in which ``left[i]`` and ``right[i]`` agree, for every i."""
        shares = np.empty(len(left))
        for start in range(0, len(left), BLOCK_DOCUMENTS):
            block = slice(start, start + BLOCK_DOCUMENTS)
            equal = self._rows(left[block]) == self._rows(right[block])
            shares[block] = equal.mean(axis=1)
        return shares

    def by_file(self, documents: Indices) -> list[Indices]:
        """Deal sorted documents back to their files, numbered from 0 in each."""
        parts = np.split(documents, np.searchsorted(documents, self._ends[1:-1]))
        return [part - begin for part, begin in zip(parts, self._ends, strict=False)]

    def _rows(self, documents: Indices) -> Signatures:
        files = np.searchsorted(self._ends, documents, side="right") - 1
        rows = np.empty((len(documents), self._slots), SLOT)
        for index in np.unique(files):
            chosen = files == index
            rows[chosen] = self._open(index)[documents[chosen] - self._ends[index]]
        return rows

    def _open(self, index: int) -> Signatures:
        rows: Signatures = np.load(self._files[index], mmap_mode="r")
        assert rows.shape[1] == self._slots, "signatures of other settings"
        return rows
