"""Encode texts into a token file, batch by batch: memory does not grow with the text."""

from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import TypeVar

from components.data.token_file import TokenFileRecord, pack_documents, write_chunks
from components.data.tokenizer import Tokenizer

Item = TypeVar("Item", bound=Sized)


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Close a batch as soon as the lengths in it reach ``size``; each item adds one of its own.

    So a batch of empty items ends, too. No batch is empty.
    """
    batch: list[Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += len(item) + 1
        if total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


BATCH_CHARACTERS = 1 << 18


def encode(path: Path, texts: Iterable[str], tokenizer: Tokenizer) -> TokenFileRecord:
    """Encode each text and write ``path``, which appears only when it is complete."""
    chunks = (
        pack_documents(
            tokenizer.encode(batch), eod_id=tokenizer.eod_id, vocab_size=tokenizer.vocab_size
        )
        for batch in batches(texts, BATCH_CHARACTERS)
    )
    return write_chunks(path, chunks, vocab_size=tokenizer.vocab_size)
