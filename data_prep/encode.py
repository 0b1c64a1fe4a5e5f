"""Encode texts into a token file, at the speed of the tokenizer.

Worker processes encode batches of texts and give back packed tokens, which this process writes
in the order of the texts: the file is the same whatever the number of workers. At any time only
a few batches are under way.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread

from components.data.token_file import Chunk, TokenFileRecord, pack_documents, write_chunks
from components.data.tokenizer import Tokenizer
from data_prep.batches import batches

BATCH_CHARACTERS = 1 << 18
BATCHES_A_WORKER = 3

_worker: list[Tokenizer] = []  # in a worker process: its copy of the tokenizer


def encode(
    path: Path, texts: Iterable[str], tokenizer: Tokenizer, *, workers: int
) -> TokenFileRecord:
    """Encode each text and write ``path``, which appears only when it is complete.

    One worker is this process itself. More are new processes, which a daemon of
    `multiprocessing` may not start; each has its own copy of the tokenizer.
    """
    chunks = _encoded(texts, tokenizer) if workers == 1 else _dealt(texts, tokenizer, workers)
    return write_chunks(path, chunks, vocab_size=tokenizer.vocab_size)


def _encoded(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[Chunk]:
    return (_pack(batch, tokenizer) for batch in batches(texts, BATCH_CHARACTERS))


def _dealt(texts: Iterable[str], tokenizer: Tokenizer, workers: int) -> Iterator[Chunk]:
    # Spawned, because a tokenizer that has run on threads hangs in a forked process.
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(tokenizer,)
    )
    under_way: deque[Future[Chunk]] = deque()
    try:
        for batch in batches(texts, BATCH_CHARACTERS):
            under_way.append(pool.submit(_pack_here, batch))
            if len(under_way) == BATCHES_A_WORKER * workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _pack(batch: list[str], tokenizer: Tokenizer) -> Chunk:
    return pack_documents(
        tokenizer.encode(batch), eod_id=tokenizer.eod_id, vocab_size=tokenizer.vocab_size
    )


def _begin(tokenizer: Tokenizer) -> None:
    """Set up a worker: one thread, and an end when the process that started it ends."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker.append(tokenizer)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the parent's end: a killed parent does not close the queue that workers read."""
    parent = parent_process()
    assert parent is not None, "runs in a worker"
    wait([parent.sentinel])
    os._exit(1)


def _pack_here(batch: list[str]) -> Chunk:
    return _pack(batch, _worker[0])
