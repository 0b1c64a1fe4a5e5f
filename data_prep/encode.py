"""Encode texts into a token file, batch by batch: memory does not grow with the text."""

from collections.abc import Iterable
from pathlib import Path

from components.data.token_file import TokenFileRecord, pack_documents, write_chunks
from components.data.tokenizer import Tokenizer
from data_prep.batches import batches

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
