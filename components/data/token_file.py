"""Packed token files: little-endian ids one after another, without a header.

What a reader must know (width, counts, hash) is in the manifest, so that a file can be mapped
into memory as it is. Every document is followed by the end-of-document id.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from components.data.files import FileRecord, replace_atomically, verify_file

Width = Literal["uint16", "uint32", "int32"]
Tokens = np.ndarray[tuple[int], np.dtype[Any]]


@dataclass(frozen=True)
class TokenFileRecord(FileRecord):
    """Identify one token file, or the part of it that begins at ``first_token``.

    ``tokens`` counts the end-of-document ids too; hash and size are those of the whole file.
    """

    tokens: int
    documents: int
    dtype: Width
    first_token: int = 0


def width_of(vocab_size: int) -> Width:
    """Choose the narrowest width that holds every id below ``vocab_size``."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def little_endian(width: Width) -> np.dtype[Any]:
    """Name the same byte order on every machine."""
    return np.dtype(width).newbyteorder("<")


def write_token_file(
    path: Path, documents: Iterable[Sequence[int]], *, eod_id: int, vocab_size: int
) -> TokenFileRecord:
    """Stream documents into ``path``, which appears only when it is complete."""
    width = width_of(vocab_size)
    dtype = little_endian(width)
    digest = hashlib.sha256()
    num_tokens = num_documents = 0
    with replace_atomically(path) as file:
        for document in documents:
            ids = np.array([*document, eod_id], dtype=np.int64)
            assert ids.min() >= 0, "a negative token id"
            assert ids.max() < vocab_size, "a token id outside the vocabulary"
            packed = ids.astype(dtype).tobytes()
            digest.update(packed)
            file.write(packed)
            num_tokens += len(ids)
            num_documents += 1
    return TokenFileRecord(
        name=path.name,
        sha256=digest.hexdigest(),
        bytes=num_tokens * dtype.itemsize,
        tokens=num_tokens,
        documents=num_documents,
        dtype=width,
    )


def open_token_file(folder: Path, record: TokenFileRecord) -> Tokens:
    """Map a token file into memory, read-only: ``[tokens]`` of the record's width.

    Raises:
        RecipeError: the file is missing or has another size than recorded.
    """
    verify_file(folder, record, contents=False)
    dtype = little_endian(record.dtype)
    if not record.tokens:  # nothing cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(
        folder / record.name,
        dtype=dtype,
        mode="r",
        offset=record.first_token * dtype.itemsize,
        shape=(record.tokens,),
    )
