"""Token files: consecutive little-endian ids, and a source's files read as one sequence.

The manifest has what a reader must know (width, counts, hash), so a file can be mapped into
memory as it is. Every document is followed by the end-of-document id.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from components.config.tokenizer_spec import id_width
from components.data.files import REBUILD, FileRecord, replace_atomically, verify_file
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError
from components.ranges import MOST
from components.ranges import Tokens as TokenCount

Width = Literal["uint16", "uint32", "int32"]
TokenArray = np.ndarray[tuple[int], np.dtype[Any]]
TokenChunk = tuple[
    TokenArray, int
]  # documents as stored in the file, how many of them end here

SizedItem = TypeVar("SizedItem", bound=Sized)

BATCH_CHARACTERS = BATCH_TOKENS = 1 << 18


@dataclass(frozen=True)
class TokenFileRecord(FileRecord):
    """Record of a token file, or of the part of it that starts at ``first_token``.

    ``tokens`` includes the end-of-document ids. Hash and size are of the whole file.
    """

    tokens: TokenCount
    documents: TokenCount
    dtype: Width
    first_token: TokenCount = 0


def little_endian(width: Width) -> np.dtype[Any]:
    """Return the little-endian dtype of a width, the same on every machine."""
    return np.dtype(width).newbyteorder("<")


def pack_documents(
    documents: Iterable[Sequence[int] | TokenArray], *, eod_id: int, vocab_size: int
) -> TokenChunk:
    """Concatenate documents, each followed by the end-of-document id, in the file's width."""
    end = np.array([eod_id], np.int32)
    parts = [part for ids in documents for part in (np.asarray(ids, np.int32), end)]
    joined = np.concatenate(parts or [end[:0]])
    assert joined.min(initial=eod_id) >= 0, "a negative token id"
    assert joined.max(initial=eod_id) < vocab_size, "a token id outside the vocabulary"
    tokens = joined.astype(little_endian(id_width(vocab_size)))
    return tokens, len(parts) // 2


def encode_to_file(path: Path, texts: Iterable[str], tokenizer: Tokenizer) -> TokenFileRecord:
    """Encode texts into the token file ``path``; memory does not grow with their number."""
    encoded = map(tokenizer.encode, iter_batches(texts, BATCH_CHARACTERS))
    documents = chain.from_iterable(encoded)
    return write_token_file(
        path, documents, eod_id=tokenizer.eod_id, vocab_size=tokenizer.vocab_size
    )


def iter_batches(items: Iterable[SizedItem], size: int) -> Iterator[list[SizedItem]]:
    """Group items into batches; a batch ends when its lengths, plus 1 each, reach ``size``."""
    batch: list[SizedItem] = []
    total = 0
    for item in items:
        batch.append(item)
        total += len(item) + 1
        if total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def write_token_file(
    path: Path, documents: Iterable[Sequence[int] | TokenArray], *, eod_id: int, vocab_size: int
) -> TokenFileRecord:
    """Pack documents and write them to ``path``; see :func:`write_chunks`."""
    chunks = (
        pack_documents(batch, eod_id=eod_id, vocab_size=vocab_size)
        for batch in iter_batches(documents, BATCH_TOKENS)
    )
    return write_chunks(path, chunks, vocab_size=vocab_size)


def write_chunks(
    path: Path, chunks: Iterable[TokenChunk], *, vocab_size: int
) -> TokenFileRecord:
    """Write packed documents to ``path``, which appears only when it is complete."""
    width = id_width(vocab_size)
    dtype = little_endian(width)
    digest = hashlib.sha256()
    num_tokens = num_documents = 0
    with replace_atomically(path) as file:
        for tokens, documents in chunks:
            assert tokens.dtype == dtype, "tokens of another width than the file's"
            digest.update(tokens.data)
            file.write(tokens.data)
            num_tokens += len(tokens)
            num_documents += documents
    size = num_tokens * dtype.itemsize
    return TokenFileRecord(
        path.name, digest.hexdigest(), size, num_tokens, num_documents, width
    )


def open_token_file(folder: Path, record: TokenFileRecord) -> TokenArray:
    """Map a token file into memory, read-only: ``[tokens]`` in the record's width."""
    verify_file(folder, record, contents=False)
    dtype = little_endian(record.dtype)
    if not record.tokens:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    offset = record.first_token * dtype.itemsize
    return np.memmap(folder / record.name, dtype, "r", offset, shape=(record.tokens,))


MOST_OPEN = 64  # for all sources together; far below the usual limit of 1,024 per process


class OpenFiles:
    """Cache of memory-mapped token files; beyond ``most_open`` it closes the least recent one.

    ``tokens`` is :func:`open_token_file` for a record in the folder; keep no view of its
    result. A pickled copy contains paths, not tokens. Each id is checked against ``vocab_size``
    when it is read: the files are too large to check completely beforehand.
    """

    def __init__(
        self, *, folder: Path, vocab_size: int = MOST, most_open: int = MOST_OPEN
    ) -> None:
        self._folder, self._vocab_size, self._most_open = folder, vocab_size, most_open
        self.tokens = lru_cache(most_open)(partial(open_token_file, folder))

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"vocab_size": self._vocab_size, "most_open": self._most_open}
        return partial(OpenFiles, folder=self._folder, **options), ()

    def read_tokens(
        self, record: TokenFileRecord, start: int, stop: int
    ) -> npt.NDArray[np.int64]:
        """Copy a range of one file's tokens; RecipeError for an id outside the vocabulary."""
        ids = self.tokens(record)[start:stop].astype(np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            wrong = next(int(token) for token in ids if not 0 <= token < self._vocab_size)
            problem = f"has token id {wrong:,}, but the vocabulary has {self._vocab_size:,} ids"
            raise RecipeError(str(self._folder / record.name), problem, REBUILD)
        return ids


class ShardedTokens:
    """Concatenated token files (shards) of a source; finding a shard takes O(log shards)."""

    def __init__(self, *, records: Sequence[TokenFileRecord], files: OpenFiles) -> None:
        self._records, self._files = tuple(records), files
        self._ends = list(accumulate(record.tokens for record in records))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read_tokens(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Copy the tokens from ``start`` to ``stop``, or to the end if that is earlier."""
        parts: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        stop = min(stop, len(self))
        shard = bisect_right(self._ends, start)
        while start < stop:
            first = self._ends[shard] - self._records[shard].tokens
            parts.append(
                self._files.read_tokens(self._records[shard], start - first, stop - first)
            )
            start += len(parts[-1])
            shard += 1
        return np.concatenate(parts)
