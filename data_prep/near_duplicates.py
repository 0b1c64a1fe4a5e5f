"""Near duplicates: MinHash signatures, their files, and groups of matching documents.

The signatures are rensa's R-MinHash: 32-bit slots. Two documents agree in a slot with a
probability equal to their Jaccard similarity. `NearDuplicates` sets which pairs of documents
become candidates, and which candidates count.
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
from components.data.token_file import iter_batches
from data_prep.shingles import Hashes, hash_shingles, mix_bits

Indices = np.ndarray[tuple[int], np.dtype[np.int64]]


class Groups:
    """Groups of documents (union-find): each points to an earlier one, the first to itself.

    Memory is 8 bytes per document. The order of pairs and calls does not affect the groups.
    """

    def __init__(self, documents: int) -> None:
        self._earlier = np.arange(documents)

    def find_first(self, documents: Any) -> Indices:
        """Return the first document of each one's group; each pass halves the path to it."""
        while True:
            earlier: Indices = self._earlier[documents]
            further = self._earlier[earlier]
            if np.array_equal(earlier, further):
                return earlier
            self._earlier[documents] = further

    def join_groups(self, left: Indices, right: Indices) -> None:
        """Join the groups of ``left[i]`` and ``right[i]``, for every i."""
        while len(left):
            left, right = self.find_first(left), self.find_first(right)
            apart = left != right
            left, right = left[apart], right[apart]
            # If several pairs would move the same document, the earliest target wins. The
            # other pairs are joined in the next round.
            np.minimum.at(self._earlier, np.maximum(left, right), np.minimum(left, right))

    def list_repeated(self) -> Indices:
        """Return the documents that are not the first of their group, in order."""
        everyone = np.arange(len(self._earlier))
        return np.flatnonzero(self.find_first(everyone) != everyone)


Signatures = np.ndarray[tuple[int, int], np.dtype[np.uint32]]

SLOT = "<u4"
BLOCK_DOCUMENTS = 1 << 14


class SignatureFiles:
    """Signatures of all documents, numbered across files in order; one file open at a time."""

    def __init__(self, files: Sequence[Path], slots: int) -> None:
        self._files, self._slots = files, slots
        self.ends = np.cumsum([0, *(len(self._open(index)) for index in range(len(files)))])
        self.documents = int(self.ends[-1])

    def iter_blocks(self) -> Iterator[tuple[int, Signatures]]:
        """Yield all rows in blocks, each with the number of its first document."""
        for index, begin in enumerate(self.ends[:-1]):
            rows = self._open(index)
            for start in range(0, len(rows), BLOCK_DOCUMENTS):
                yield int(begin) + start, np.array(rows[start : start + BLOCK_DOCUMENTS])

    def measure_agreement(self, left: Indices, right: Indices) -> Any:
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
    """Split sorted global document numbers by file, numbered from 0 in each."""
    parts = np.split(documents, np.searchsorted(documents, ends[1:-1]))
    return [part - begin for part, begin in zip(parts, ends, strict=False)]


Alike = Callable[[Indices, Indices], Any]

# rensa's value of a slot without any shingle: either all slots of a document have it, or none.
UNREACHED = 0xFFFFFFFF
BATCH_SHINGLES = 1 << 18
KEY = np.dtype("<u8")
NO_KEY, ANY_KEY = 0, 1
# Quantile of the normal distribution: 99 % of the pairs exactly at the threshold pass.
QUANTILE = 2.326


def write_signatures(texts: Iterable[str], file: Path, settings: NearDuplicates) -> int:
    """Write one signature per text to ``file`` (.npy) and return the number of texts.

    The array is ``[documents, bands * rows]`` of 32 bits, the same bytes on every machine. A
    text without words has no shingles and no duplicates.
    """
    slots, documents = settings.bands * settings.rows, 0
    header = {"descr": SLOT, "fortran_order": False, "shape": (0, slots)}
    with replace_atomically(file) as stream:
        npy.write_array_header_1_0(stream, header)
        hashed = (hash_shingles(text, settings.ngram) for text in texts)
        for batch in iter_batches(hashed, BATCH_SHINGLES):
            ends = np.cumsum([0, *map(len, batch)], dtype=np.uint64)
            matrix = RMinHash.digest_matrix_from_flat_token_hashes(
                np.concatenate(batch), ends, slots, settings.seed
            )
            stream.write(np.array(matrix.to_rows(), SLOT).tobytes())
            documents += len(batch)
        stream.seek(0)  # numpy's header leaves space for any number of documents
        npy.write_array_header_1_0(stream, {**header, "shape": (documents, slots)})
    return documents


def find_duplicates(
    signature_files: Sequence[Path], settings: NearDuplicates, folder: Path
) -> list[Indices]:
    """Return for each file the sorted indices of documents that repeat an earlier one.

    Documents that match, directly or through others, form a group. The group's first document,
    in the order of the files, is kept. Memory is for one band at a time, about 40 bytes per
    document. A temporary file in ``folder`` takes 8 bytes per document and band.
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
    return deal_back(groups.list_repeated(), signatures.ends)


def _write_keys(file: IO[bytes], signatures: SignatureFiles, settings: NearDuplicates) -> None:
    """Write one key per document and band, band by band; equal slots give equal keys."""
    for begin, block in signatures.iter_blocks():
        slots = block.reshape(len(block), settings.bands, settings.rows)
        keys = np.zeros(slots.shape[:2], KEY)
        for row in range(settings.rows):
            keys = mix_bits(keys ^ slots[:, :, row])
        keys[keys == NO_KEY] = ANY_KEY
        keys[(block == UNREACHED).all(axis=1)] = NO_KEY
        for band in range(settings.bands):
            file.seek((band * signatures.documents + begin) * KEY.itemsize)
            file.write(keys[:, band].tobytes())


def _candidates(keys: Hashes) -> tuple[Indices, Hashes]:
    """Sort documents by key; drop those with a unique key."""
    order = np.argsort(keys)
    keys = keys[order]
    same = np.concatenate([[False], keys[1:] == keys[:-1], [False]])
    shared = (same[1:] | same[:-1]) & (keys != NO_KEY)
    return order[shared], keys[shared]


def _join(groups: Groups, documents: Indices, buckets: Hashes, alike: Alike) -> None:
    """Join all pairs of a bucket that are alike, without comparing pairs joined already."""
    distance = 1
    while len(documents):
        together = buckets[distance:] == buckets[:-distance]
        left, right = documents[:-distance][together], documents[distance:][together]
        apart = groups.find_first(left) != groups.find_first(right)
        left, right = left[apart], right[apart]
        matching = alike(left, right)
        groups.join_groups(left[matching], right[matching])
        open_ = _undecided(groups.find_first(documents), buckets, distance)
        documents, buckets = documents[open_], buckets[open_]
        distance += 1


def _undecided(first: Indices, buckets: Hashes, distance: int) -> Any:
    """Mark the documents of buckets with several groups and pairs that were not compared."""
    starts = np.flatnonzero(np.concatenate([[True], buckets[1:] != buckets[:-1]]))
    sizes = np.diff(starts, append=len(buckets))
    several = np.minimum.reduceat(first, starts) != np.maximum.reduceat(first, starts)
    return np.repeat(several & (sizes > distance + 1), sizes)


def _alike(signatures: SignatureFiles, settings: NearDuplicates) -> Alike:
    """Return the function that decides which candidates count.

    The similarity estimate is the share of equal slots, with standard error
    sqrt(s (1 - s) / slots) (Broder 1997, On the resemblance and containment of documents). A
    pair passes if this error can explain how far its estimate is below the threshold.
    """
    if settings.threshold == "none":
        return lambda left, right: np.ones(len(left), np.bool_)
    threshold, slots = settings.threshold, settings.bands * settings.rows
    lowest = threshold - QUANTILE * sqrt(threshold * (1 - threshold) / slots)
    return lambda left, right: signatures.measure_agreement(left, right) >= lowest
