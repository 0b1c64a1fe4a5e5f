"""Near duplicates: MinHash signatures, files of them, and groups of documents that match.

The signatures are those of rensa's R-MinHash: 32-bit slots, in each of which two documents
agree with the probability of their Jaccard similarity. Which pairs of documents become
candidates, and which candidates count, `NearDuplicates` says.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import sqrt
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from rensa import RMinHash

from components.config.schema.data import NearDuplicates
from components.data.files import replace_atomically
from components.data.token_file import batches
from data_prep.shingles import Hashes, scramble, shingles

Indices = np.ndarray[tuple[int], np.dtype[np.int64]]


class Groups:
    """Groups of documents (union-find): each points at an earlier one, the first at itself.

    8 bytes a document; the groups are the same whatever the order of pairs and calls.
    """

    def __init__(self, documents: int) -> None:
        self._earlier = np.arange(documents)

    def first(self, documents: Any) -> Indices:
        """Find the first document of each one's group; each pass halves the way to it."""
        while True:
            earlier: Indices = self._earlier[documents]
            further = self._earlier[earlier]
            if np.array_equal(earlier, further):
                return earlier
            self._earlier[documents] = further

    def join(self, left: Indices, right: Indices) -> None:
        """Join the groups of ``left[i]`` and ``right[i]``, for every i."""
        while len(left):
            left, right = self.first(left), self.first(right)
            apart = left != right
            left, right = left[apart], right[apart]
            # Of several pairs that would move one document, the earliest goal wins; the
            # others meet it in the next round.
            np.minimum.at(self._earlier, np.maximum(left, right), np.minimum(left, right))

    def repeated(self) -> Indices:
        """List the documents that are not the first of their group, in order."""
        everyone = np.arange(len(self._earlier))
        return np.flatnonzero(self.first(everyone) != everyone)


Signatures = np.ndarray[tuple[int, int], np.dtype[np.uint32]]

SLOT = "<u4"
BLOCK_DOCUMENTS = 1 << 14


class SignatureFiles:
    """Documents numbered through all files, in their order; one file is open at a time."""

    def __init__(self, files: Sequence[Path], slots: int) -> None:
        self._files, self._slots = files, slots
        self.ends = np.cumsum([0, *(len(self._open(index)) for index in range(len(files)))])
        self.documents = int(self.ends[-1])

    def blocks(self) -> Iterator[tuple[int, Signatures]]:
        """Read all rows; with each block comes the number of its first document."""
        for index, begin in enumerate(self.ends[:-1]):
            rows = self._open(index)
            for start in range(0, len(rows), BLOCK_DOCUMENTS):
                yield int(begin) + start, np.array(rows[start : start + BLOCK_DOCUMENTS])

    def agreement(self, left: Indices, right: Indices) -> Any:
        """Return the share of slots in which ``left[i]`` and ``right[i]`` agree, for all i."""
        shares = np.empty(len(left))
        for start in range(0, len(left), BLOCK_DOCUMENTS):
            block = slice(start, start + BLOCK_DOCUMENTS)
            equal = self._rows(left[block]) == self._rows(right[block])
            shares[block] = equal.mean(axis=1)
        return shares

    def _rows(self, documents: Indices) -> Signatures:
        files = np.searchsorted(self.ends, documents, side="right") - 1
        rows = np.empty((len(documents), self._slots), SLOT)
        for index in np.unique(files):
            chosen = files == index
            rows[chosen] = self._open(index)[documents[chosen] - self.ends[index]]
        return rows

    def _open(self, index: int) -> Signatures:
        rows: Signatures = np.load(self._files[index], mmap_mode="r")
        assert rows.shape[1] == self._slots, "signatures of other settings"
        return rows


def deal_back(documents: Indices, ends: Indices) -> list[Indices]:
    """Deal sorted documents back to their files, numbered from 0 in each."""
    parts = np.split(documents, np.searchsorted(documents, ends[1:-1]))
    return [part - begin for part, begin in zip(parts, ends, strict=False)]


Alike = Callable[[Indices, Indices], Any]

# rensa's value of a slot that no shingle reached: all slots of a document have it, or none.
UNREACHED = 0xFFFFFFFF
BATCH_SHINGLES = 1 << 18
KEY = np.dtype("<u8")
NO_KEY, ANY_KEY = 0, 1
# The normal distribution's quantile: of pairs exactly at the threshold 99 % are let through.
QUANTILE = 2.326


def write_signatures(texts: Iterable[str], file: Path, settings: NearDuplicates) -> int:
    """Write one row a text to ``file`` (.npy) and return how many there are.

    ``[documents, bands * rows]`` of 32 bits, the same bytes on every machine. A text without a
    word has no shingle and no duplicate.
    """
    slots, documents = settings.bands * settings.rows, 0
    header = {"descr": SLOT, "fortran_order": False, "shape": (0, slots)}
    with replace_atomically(file) as stream:
        npy.write_array_header_1_0(stream, header)
        hashed = (shingles(text, settings.ngram) for text in texts)
        for batch in batches(hashed, BATCH_SHINGLES):
            ends = np.cumsum([0, *map(len, batch)], dtype=np.uint64)
            matrix = RMinHash.digest_matrix_from_flat_token_hashes(
                np.concatenate(batch), ends, slots, settings.seed
            )
            stream.write(np.array(matrix.to_rows(), SLOT).tobytes())
            documents += len(batch)
        stream.seek(0)  # numpy leaves room for any number of documents
        npy.write_array_header_1_0(stream, {**header, "shape": (documents, slots)})
    return documents


def find_duplicates(
    signature_files: Sequence[Path], settings: NearDuplicates, folder: Path
) -> list[Indices]:
    """Return for each file the sorted indices of its documents that repeat an earlier one.

    Documents that match, directly or through others, are one group, whose first document in
    the order of the files stays. Memory is for one band at a time, about 40 bytes a document;
    ``folder`` holds 8 bytes a document and band until the call returns.
    """
    signatures = SignatureFiles(signature_files, settings.bands * settings.rows)
    groups = Groups(signatures.documents)
    alike = _alike(signatures, settings)
    with TemporaryFile(dir=folder) as keys:
        _write_keys(keys, signatures, settings)
        for band in range(settings.bands):
            keys.seek(band * signatures.documents * KEY.itemsize)
            content = keys.read(signatures.documents * KEY.itemsize)
            documents, buckets = _candidates(np.frombuffer(content, KEY))
            _join(groups, documents, buckets, alike)
    return deal_back(groups.repeated(), signatures.ends)


def _write_keys(file: IO[bytes], signatures: SignatureFiles, settings: NearDuplicates) -> None:
    """Write one key a document and band, band after band: equal slots, equal keys."""
    for begin, block in signatures.blocks():
        slots = block.reshape(len(block), settings.bands, settings.rows)
        keys = np.zeros(slots.shape[:2], KEY)
        for row in range(settings.rows):
            keys = scramble(keys ^ slots[:, :, row])
        keys[keys == NO_KEY] = ANY_KEY
        keys[(block == UNREACHED).all(axis=1)] = NO_KEY
        for band in range(settings.bands):
            file.seek((band * signatures.documents + begin) * KEY.itemsize)
            file.write(keys[:, band].tobytes())


def _candidates(keys: Hashes) -> tuple[Indices, Hashes]:
    """Bring documents that share a key side by side; those alone with theirs are left out."""
    order = np.argsort(keys)
    keys = keys[order]
    same = np.concatenate([[False], keys[1:] == keys[:-1], [False]])
    shared = (same[1:] | same[:-1]) & (keys != NO_KEY)
    return order[shared], keys[shared]


def _join(groups: Groups, documents: Indices, buckets: Hashes, alike: Alike) -> None:
    """Join every pair of a bucket that is alike, looking at no pair that is joined already."""
    distance = 1
    while len(documents):
        together = buckets[distance:] == buckets[:-distance]
        left, right = documents[:-distance][together], documents[distance:][together]
        apart = groups.first(left) != groups.first(right)
        left, right = left[apart], right[apart]
        matching = alike(left, right)
        groups.join(left[matching], right[matching])
        open_ = _undecided(groups.first(documents), buckets, distance)
        documents, buckets = documents[open_], buckets[open_]
        distance += 1


def _undecided(first: Indices, buckets: Hashes, distance: int) -> Any:
    """Mark the documents of buckets that hold several groups and pairs not yet looked at."""
    starts = np.flatnonzero(np.concatenate([[True], buckets[1:] != buckets[:-1]]))
    sizes = np.diff(starts, append=len(buckets))
    several = np.minimum.reduceat(first, starts) != np.maximum.reduceat(first, starts)
    return np.repeat(several & (sizes > distance + 1), sizes)


def _alike(signatures: SignatureFiles, settings: NearDuplicates) -> Alike:
    """Decide which candidates count.

    The estimate is the share of equal slots, of standard error sqrt(s (1 - s) / slots) (Broder
    1997, On the resemblance and containment of documents); a pair passes where it is no further
    below the threshold than this error explains.
    """
    if settings.threshold == "none":
        return lambda left, right: np.ones(len(left), np.bool_)
    threshold, slots = settings.threshold, settings.bands * settings.rows
    lowest = threshold - QUANTILE * sqrt(threshold * (1 - threshold) / slots)
    return lambda left, right: signatures.agreement(left, right) >= lowest
