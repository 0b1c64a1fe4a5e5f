"""Near duplicates: MinHash signatures of documents, and the groups of documents that match.

The signatures are those of rensa's R-MinHash: 32-bit slots, in each of which two documents
agree with the probability of their Jaccard similarity. Which pairs of documents become
candidates, and which candidates count, `NearDuplicates` says.
"""

from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from rensa import RMinHash

from components.data.files import replace_atomically
from components.spec.near_duplicates import NearDuplicates
from data_prep.batches import batches
from data_prep.groups import Groups, Indices
from data_prep.shingles import Hashes, scramble, shingles
from data_prep.signature_files import SignatureFiles, Signatures, write_header

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
    with replace_atomically(file) as stream:
        write_header(stream, documents, slots)
        hashed = (shingles(text, settings.ngram) for text in texts)
        for batch in batches(hashed, BATCH_SHINGLES):
            stream.write(_sign(batch, slots, settings.seed).tobytes())
            documents += len(batch)
        stream.seek(0)
        write_header(stream, documents, slots)
    return documents


def find_duplicates(
    signature_files: Sequence[Path], settings: NearDuplicates, folder: Path
) -> list[Indices]:
    """Give for each file the sorted indices of its documents that repeat an earlier one.

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
            documents, buckets = _candidates(_read_keys(keys, band, signatures.documents))
            _join(groups, documents, buckets, alike)
    return signatures.by_file(groups.repeated())


def _sign(batch: list[Hashes], slots: int, seed: int) -> Signatures:
    ends = np.cumsum([0, *map(len, batch)], dtype=np.uint64)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        np.concatenate(batch), ends, slots, seed
    )
    return np.array(matrix.to_rows(), dtype="<u4")


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


def _read_keys(file: IO[bytes], band: int, documents: int) -> Hashes:
    file.seek(band * documents * KEY.itemsize)
    return np.frombuffer(file.read(documents * KEY.itemsize), KEY)


def _candidates(keys: Hashes) -> tuple[Indices, Hashes]:
    """Bring documents that share a key side by side; those alone with theirs are left out."""
    order = np.argsort(keys)
    keys = keys[order]
    same = keys[1:] == keys[:-1]
    shared = np.zeros(len(keys), np.bool_)
    shared[1:] |= same
    shared[:-1] |= same
    shared &= keys != NO_KEY
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
