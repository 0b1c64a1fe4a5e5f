"""Data card: the counts, samples and unigram loss of a data set.

A model has learned something only if its held-out loss is below the unigram loss.

Fertility (`data_prep.fertility`) is measured on the first documents of each source.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from components.config.schema.data import Source
from components.data.manifest import Manifest, StageRecord
from components.data.token_file import OpenFiles, ShardedTokens, TokenFileRecord
from components.data.tokenizer import Tokenizer
from components.terminal import hide_folders
from data_prep.fertility import MEASURED_CHARACTERS, MEASURED_DOCUMENTS, count_tokens
from data_prep.read import UNKNOWN, Document
from data_prep.sources import OpenSource, find_inputs, licence_of
from data_prep.stages.plan import FILE_NAME as PLAN
from data_prep.stages.plan import read_plan
from data_prep.stages.record import read_manifest

BLOCK_TOKENS = 1 << 20
MOST_TOKENS = 1 << 27  # counted in seconds; more tokens would not change relevant frequencies
SHOWN_DOCUMENTS, SHOWN_CHARACTERS = 3, 300
RAW = "clean"  # the stage that reads the user's input
CardTree = dict[str, Any]


def unigram_losses(
    folder: Path, manifest: Manifest, shares: Mapping[str, float], vocab_size: int
) -> dict[str, float]:
    """Return each source's held-out cross-entropy in nats per token.

    The unigram model is fitted to the training tokens as the mixture draws them: each source's
    frequencies times its share of all tokens, plus one for every id (Laplace's rule of
    succession). A source without a share has a loss, but does not affect the fit. For a source
    above ``MOST_TOKENS``, evenly spaced blocks represent the whole.
    """
    total_tokens = sum(source.train_tokens for source in manifest.sources.values())
    counts = np.ones(vocab_size)
    for name, share in shares.items():
        frequencies = _counts(folder, manifest.sources[name].train, vocab_size)
        counts += share * total_tokens / frequencies.sum() * frequencies
    log_probabilities = np.log(counts / counts.sum())
    held_out = {
        name: _counts(folder, source.held_out, vocab_size)
        for name, source in manifest.sources.items()
    }
    return {name: float(-(n @ log_probabilities) / n.sum()) for name, n in held_out.items()}


def _counts(
    folder: Path, records: Sequence[TokenFileRecord], vocab_size: int
) -> npt.NDArray[np.int64]:
    tokens = ShardedTokens(
        records=records, files=OpenFiles(folder=folder, vocab_size=vocab_size)
    )
    counts = np.zeros(vocab_size, dtype=np.int64)
    stride = max(BLOCK_TOKENS, len(tokens) * BLOCK_TOKENS // MOST_TOKENS)
    for start in range(0, len(tokens), stride):
        counts += np.bincount(
            tokens.read_tokens(start, start + BLOCK_TOKENS), minlength=vocab_size
        )
    return counts


def build_card(
    *,
    name: str,
    manifest: Manifest,
    sources: Mapping[str, Source],
    texts: Mapping[str, Source | OpenSource],
    tokenizer: Tokenizer,
    mixture: Mapping[str, Mapping[str, float]],
    stages: Path,
) -> CardTree:
    """Return the card of a prepared data set.

    ``sources`` are the recipe's, ``texts`` are what was tokenized for them, ``stages`` is the
    folder of the stages that cleaned it, ``mixture`` is what a run draws from each source.
    """
    documents = {key: _first_documents(key, texts[key]) for key in manifest.sources}
    inputs = {key: _inputs(manifest, key, stages) for key in manifest.sources}
    records, used = manifest.sources.values(), manifest.tokenizer
    return {
        "name": name,
        "key": manifest.key,
        "tokenizer": {"settings": dict(used.settings), "vocab_size": used.vocab_size},
        "totals": {
            "train_tokens": sum(record.train_tokens for record in records),
            "held_out_tokens": sum(record.held_out_tokens for record in records),
            "documents": sum(record.documents for record in records),
            "input_bytes": sum(entry["bytes"] for entry in chain(*inputs.values())),
        },
        "sources": {
            key: {
                **_source(manifest, key, sources[key]),
                "inputs": inputs[key],
                "mixture": dict(mixture.get(key, {})),
                "samples": [
                    document.text[:SHOWN_CHARACTERS]
                    for document in documents[key][:SHOWN_DOCUMENTS]
                ],
            }
            for key in manifest.sources
        },
        "stages": {
            work: _stage(work, stage, stages) for work, stage in manifest.stages.items()
        },
        "fertility": _fertility(documents, sources, tokenizer),
    }


def _first_documents(name: str, source: Source | OpenSource) -> list[Document]:
    """Read the first documents of a source; token files have no text."""
    if isinstance(source, OpenSource):
        inputs = source.inputs
    else:
        inputs = () if source.tokens else find_inputs(name, source)
    documents = chain.from_iterable(text_input.iter_documents() for text_input in inputs)
    return list(islice(documents, MEASURED_DOCUMENTS))


def _inputs(manifest: Manifest, name: str, stages: Path) -> list[CardTree]:
    """List the raw inputs: of the first stage, or else of the token files.

    Bytes are file sizes, compressed or not. The stage's folder may have been deleted. A card is
    published, so it names no folder of this machine.
    """
    first = manifest.stages.get(RAW)
    folder = stages / f"{RAW}-{first.key[:12]}" if first else stages
    inputs: Iterable[Any] = manifest.sources[name].inputs
    if first is not None and name in first.sources and (folder / PLAN).exists():
        tasks = [task for task in read_plan(folder).tasks if task.source == name]
        inputs = {piece.name: piece for task in tasks for piece in task.pieces}.values()
    return [
        {"name": hide_folders(piece.name), "sha256": piece.sha256, "bytes": piece.bytes}
        for piece in inputs
    ]


def _source(manifest: Manifest, name: str, source: Source) -> CardTree:
    record = manifest.sources[name]
    stages = [
        stage.sources[name] for stage in manifest.stages.values() if name in stage.sources
    ]
    return {
        "language": source.language,
        "licence": source.licence or (licence_of(source.embedded) if source.embedded else None),
        "origin": source.origin,
        "documents": record.documents,
        "train_tokens": record.train_tokens,
        "held_out_tokens": record.held_out_tokens,
        "languages": dict(stages[-1].languages) if stages else {},
    }


def _stage(work: str, record: StageRecord, stages: Path) -> CardTree:
    stage_manifest = read_manifest(stages / f"{work}-{record.key[:12]}", record.key)
    return {
        "key": record.key,
        "sources": {key: asdict(counts) for key, counts in record.sources.items()},
        "examples": {} if stage_manifest is None else dict(stage_manifest.tally.examples),
    }


def _fertility(
    first: Mapping[str, list[Document]], sources: Mapping[str, Source], tokenizer: Tokenizer
) -> dict[str, dict[str, float]]:
    """Count tokens, words and bytes by identified language, or else by the source's own."""
    by_language: dict[str, list[str]] = defaultdict(list)
    for name, documents in first.items():
        own = sources[name].language or name
        for document in documents:
            language = own if document.language == UNKNOWN else document.language
            by_language[language].append(document.text[:MEASURED_CHARACTERS])
    return {name: count_tokens(texts, tokenizer) for name, texts in sorted(by_language.items())}
