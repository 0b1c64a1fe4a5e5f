"""The text that a tokenizer is trained on: about the same amount of each source.

A balanced sample keeps a small language from drowning; hashes choose it, so that it is spread
over the whole source and the same on every machine.
"""

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from data_prep.read import Document
from data_prep.split import Split

PIECE_CHARACTERS = 1000


def training_texts(
    sources: Mapping[str, Callable[[], Iterable[Document]]],
    splits: Mapping[str, Split],
    sample_bytes: int | Literal["all"],
) -> Iterator[str]:
    """Draw the tokenizer's text from the training side alone, as much of each source."""
    for name, documents in sources.items():
        texts = map(splits[name].train_text, documents())
        yield from texts if sample_bytes == "all" else sample_texts(texts, sample_bytes)


def sample_texts(texts: Iterable[str], sample_bytes: int) -> list[str]:
    """Draw pieces of a few lines, at most ``sample_bytes`` UTF-8 bytes together.

    The pieces with the smallest hashes are kept in one pass, in memory for the sample alone.
    """
    kept: list[tuple[int, str]] = []
    kept_bytes = 0
    for text in texts:
        for piece in _pieces(text):
            content = piece.encode()
            digest = hashlib.blake2b(content, digest_size=8, person=b"tokenizer").digest()
            heapq.heappush(kept, (-int.from_bytes(digest, "little"), piece))
            kept_bytes += len(content)
            while kept_bytes > sample_bytes:
                kept_bytes -= len(heapq.heappop(kept)[1].encode())
    return [piece for _, piece in sorted(kept, reverse=True)]


def _pieces(text: str) -> Iterator[str]:
    """Cut ``text`` at line ends into pieces of about ``PIECE_CHARACTERS``."""
    piece: list[str] = []
    size = 0
    for line in text.split("\n"):
        piece.append(line)
        size += len(line)
        if size >= PIECE_CHARACTERS:
            yield "\n".join(piece)
            piece, size = [], 0
    if size:
        yield "\n".join(piece)
