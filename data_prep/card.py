"""Data card: what a data set is, counted and shown, with its unigram loss.

The unigram loss is the mark that a held-out loss must beat before anything can be called
learnt.

Fertility is tokens a word (Rust et al. 2021, "How Good is Your Tokenizer?", arXiv 2012.15613,
Section 3.2); words are what white space separates, so that of text without spaces bytes a token
say more. It is measured on the first documents of each source.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from components.config.schema.data import Source
from components.data.manifest import Manifest, StageRecord
from components.data.token_file import MOST_OPEN, OpenFiles, ShardedTokens, TokenFileRecord
from components.data.tokenizer import Tokenizer
from data_prep.embedded import licence_of
from data_prep.read import Document
from data_prep.sources import OpenSource, find_inputs
from data_prep.stages.plan import FILE_NAME as PLAN
from data_prep.stages.plan import read_plan
from data_prep.stages.record import read_manifest

BLOCK_TOKENS = 1 << 20
MOST_TOKENS = 1 << 27  # seconds to count; more would move no frequency that matters


def unigram_losses(
    folder: Path, manifest: Manifest, shares: Mapping[str, float], vocab_size: int
) -> dict[str, float]:
    """Give each source's held-out cross-entropy in nats per token.

    The model is fitted to the training tokens as the mixture draws them: each source's
    frequencies times its share of all tokens, plus one for every id (Laplace's rule of
    succession). A source without a share is judged, but adds nothing to the fit. Of a source
    above ``MOST_TOKENS``, blocks at equal distances stand for the whole.
    """
    total_tokens = sum(source.train_tokens for source in manifest.sources.values())
    counts = np.ones(vocab_size)
    for name, share in shares.items():
        found = _counts(folder, manifest.sources[name].train, vocab_size)
        counts += share * total_tokens / found.sum() * found
    log_probabilities = np.log(counts / counts.sum())
    return {
        name: _cross_entropy(folder, source.held_out, log_probabilities)
        for name, source in manifest.sources.items()
    }


def _cross_entropy(
    folder: Path,
    records: Sequence[TokenFileRecord],
    log_probabilities: npt.NDArray[np.float64],
) -> float:
    counts = _counts(folder, records, len(log_probabilities))
    return float(-(counts @ log_probabilities) / counts.sum())


def _counts(
    folder: Path, records: Sequence[TokenFileRecord], vocab_size: int
) -> npt.NDArray[np.int64]:
    files = OpenFiles(folder=folder, most_open=MOST_OPEN)
    tokens = ShardedTokens(records=records, files=files)
    counts = np.zeros(vocab_size, dtype=np.int64)
    stride = max(BLOCK_TOKENS, len(tokens) * BLOCK_TOKENS // MOST_TOKENS)
    for start in range(0, len(tokens), stride):
        counts += np.bincount(tokens.read(start, start + BLOCK_TOKENS), minlength=vocab_size)
    return counts


MEASURED_DOCUMENTS, MEASURED_CHARACTERS = 200, 2_000  # of a source, of a document
SHOWN_DOCUMENTS, SHOWN_CHARACTERS = 3, 300
UNKNOWN = "unknown"
RAW = "clean"  # the pass that reads what the user has
Tree = dict[str, Any]


def describe(
    *,
    name: str,
    manifest: Manifest,
    sources: Mapping[str, Source],
    texts: Mapping[str, Source | OpenSource],
    tokenizer: Tokenizer,
    mixture: Mapping[str, Mapping[str, float]],
    stages: Path,
) -> Tree:
    """Collect the card of a prepared data set.

    ``sources`` are the recipe's, ``texts`` what was tokenised of them, ``stages`` the folder of
    the passes that cleaned it, ``mixture`` what a run draws of each source.
    """
    first = {key: _first_documents(key, texts[key]) for key in manifest.sources}
    inputs = {key: _inputs(manifest, key, stages) for key in manifest.sources}
    return {
        "name": name,
        "key": manifest.key,
        "tokenizer": {
            "settings": dict(manifest.tokenizer.settings),
            "vocab_size": manifest.tokenizer.vocab_size,
        },
        "totals": {
            **_totals(manifest),
            "input_bytes": sum(one["bytes"] for found in inputs.values() for one in found),
        },
        "sources": {
            key: {
                **_source(manifest, key, sources[key]),
                "inputs": inputs[key],
                "mixture": dict(mixture.get(key, {})),
                "samples": [one.text[:SHOWN_CHARACTERS] for one in first[key]][
                    :SHOWN_DOCUMENTS
                ],
            }
            for key in manifest.sources
        },
        "stages": {
            work: {
                "key": record.key,
                "sources": {key: asdict(counts) for key, counts in record.sources.items()},
                "examples": _examples(stages, work, record),
            }
            for work, record in manifest.stages.items()
        },
        "fertility": _fertility(first, sources, tokenizer),
    }


def _first_documents(name: str, source: Source | OpenSource) -> list[Document]:
    """Read the beginning of a source; token files have no text."""
    if not isinstance(source, OpenSource) and source.tokens:
        return []
    return list(islice(_documents(name, source), MEASURED_DOCUMENTS))


def _documents(name: str, source: Source | OpenSource) -> Iterator[Document]:
    if isinstance(source, OpenSource):
        yield from source.documents()
        return
    for text_input in find_inputs(name, source):
        yield from text_input.documents()


def _totals(manifest: Manifest) -> Tree:
    """Sum over sources."""
    sources = manifest.sources.values()
    return {
        "train_tokens": sum(source.train_tokens for source in sources),
        "held_out_tokens": sum(source.held_out_tokens for source in sources),
        "documents": sum(source.documents for source in sources),
    }


def _inputs(manifest: Manifest, name: str, stages: Path) -> list[Tree]:
    """Name what was read first: what went into the passes, or else into the token files.

    Bytes are those of the files, compressed or not. The folder of a pass may be deleted since.
    """
    first = manifest.stages.get(RAW)
    folder = stages / f"{RAW}-{first.key[:12]}" if first else stages
    if first is None or name not in first.sources or not (folder / PLAN).exists():
        return [asdict(one) for one in manifest.sources[name].inputs]
    pieces = (
        piece
        for task in read_plan(folder).tasks
        if task.source == name
        for piece in task.pieces
    )
    keys = ("name", "sha256", "bytes")
    found = {piece.name: {key: getattr(piece, key) for key in keys} for piece in pieces}
    return list(found.values())


def _source(manifest: Manifest, name: str, source: Source) -> Tree:
    record = manifest.sources[name]
    return {
        "language": source.language,
        "licence": source.licence or (licence_of(source.embedded) if source.embedded else None),
        "origin": source.origin,
        "documents": record.documents,
        "train_tokens": record.train_tokens,
        "held_out_tokens": record.held_out_tokens,
        "languages": _languages(manifest, name),
    }


def _languages(manifest: Manifest, name: str) -> dict[str, int]:
    """Count documents by language after the last pass, if any told languages."""
    for record in reversed(list(manifest.stages.values())):
        if name in record.sources:
            return dict(record.sources[name].languages)
    return {}


def _examples(stages: Path, work: str, record: StageRecord) -> dict[str, list[dict[str, str]]]:
    """Read what each reason removed first; a folder of stages may be deleted since."""
    found = read_manifest(stages / f"{work}-{record.key[:12]}", record.key)
    return {} if found is None else dict(found.tally.examples)


def _fertility(
    first: Mapping[str, list[Document]], sources: Mapping[str, Source], tokenizer: Tokenizer
) -> dict[str, dict[str, float]]:
    """Count tokens, words and bytes by language: the identified one, or the source's own."""
    texts: dict[str, list[str]] = defaultdict(list)
    for name, documents in first.items():
        for one in documents:
            language = getattr(one, "language", UNKNOWN)
            if language == UNKNOWN:
                language = sources[name].language or name
            texts[language].append(one.text[:MEASURED_CHARACTERS])
    return {language: _measure(texts[language], tokenizer) for language in sorted(texts)}


def _measure(texts: list[str], tokenizer: Tokenizer) -> dict[str, float]:
    tokens = sum(len(ids) for ids in tokenizer.encode(texts))
    words = sum(len(text.split()) for text in texts)
    size = sum(len(text.encode()) for text in texts)
    return {
        "documents": len(texts),
        "tokens": tokens,
        "words": words,
        "bytes": size,
        "tokens_per_word": tokens / max(words, 1),
        "bytes_per_token": size / max(tokens, 1),
    }
