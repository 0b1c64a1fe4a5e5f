"""datatrove as a peer of `benchmarks.preparation.data_prep`, with its local executor."""

import struct
from pathlib import Path
from typing import Any

import xxhash
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.utils.logging import logger
from datatrove.utils.word_tokenizers import WordTokenizer

from benchmarks.preparation.data_prep_ours import BANDS, NGRAM, ROWS, WORKERS


def encode_datatrove(source: Path, json_file: Path, folder: Path) -> int:
    """Run DocumentTokenizer without shuffling, a task per file; return the number of tokens."""
    tokenizer = DocumentTokenizer(
        str(folder / "tokens"), str(json_file), eos_token=None, shuffle_documents=False
    )
    _run_pipeline([JsonlReader(str(source)), tokenizer], WORKERS, folder / "log")
    num_bytes = sum(file.stat().st_size for file in (folder / "tokens").glob("*.ds"))
    return int(num_bytes // tokenizer.token_size)


def remove_datatrove(source: Path, folder: Path) -> list[list[int]]:
    """Run MinHash in three stages, which keep the first document of each cluster."""
    config = MinhashConfig(n_grams=NGRAM, num_buckets=BANDS, hashes_per_bucket=ROWS)
    parts = {name: str(folder / name) for name in ("signatures", "buckets", "clusters")}
    sign = MinhashDedupSignature(parts["signatures"], config, language=WhitespaceSplit())
    sign._hash_func = hash_words
    buckets = MinhashDedupBuckets(parts["signatures"], parts["buckets"], config=config)
    cluster = MinhashDedupCluster(
        parts["buckets"], parts["clusters"], config=config, save_cluster_id=True
    )
    for number, (steps, tasks) in enumerate((
        ([JsonlReader(str(source)), sign], WORKERS),
        ([buckets], BANDS),
        ([cluster], 1),
    )):
        _run_pipeline(steps, tasks, folder / f"log_{number}")
    return _removed_documents(folder / "clusters")


def _removed_documents(folder: Path) -> list[list[int]]:
    seen: set[int] = set()
    removed: list[list[int]] = []
    for index in range(WORKERS):
        file = folder / f"{index:06d}.clusters"
        content = file.read_bytes() if file.exists() else b""
        removed.append([])
        for document, cluster in struct.iter_unpack("<II", content):
            if cluster in seen:
                removed[-1].append(document)
            seen.add(cluster)
    return removed


def hash_words(words: str) -> int:
    """Hash text as datatrove 0.10.1 intends; since version 4 xxhash accepts only bytes."""
    return xxhash.xxh64_intdigest(words.encode())


class WhitespaceSplit(WordTokenizer):  # type: ignore[misc]  # datatrove is not typed
    """Split words at white space; the default needs a package that datatrove lacks."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()

    def sent_tokenize(self, text: str) -> list[str]:
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def _run_pipeline(steps: list[Any], tasks: int, log: Path) -> None:
    logger.remove()
    LocalPipelineExecutor(
        steps, tasks=tasks, workers=WORKERS, logging_dir=str(log), start_method="spawn"
    ).run()
