"""Data card: what a data set is, counted and shown, with its unigram loss.

A held-out loss must beat the unigram loss before anything can be called learnt.

Fertility (`data_prep.fertility`) is measured on the first documents of each source.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
MOST_TOKENS = 1 << 27  # seconds to count; more would move no frequency that matters
SHOWN_DOCUMENTS, SHOWN_CHARACTERS = 3, 300
RAW = "clean"  # the pass that reads what the user has
Tree = dict[str, Any]


def unigram_losses(
    folder: Path, manifest: Manifest, shares: Mapping[str, float], vocab_size: int
) -> dict[str, float]:
    """Return each source's held-out cross-entropy in nats per token.

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
        counts += np.bincount(tokens.read(start, start + BLOCK_TOKENS), minlength=vocab_size)
    return counts


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
    records, used = manifest.sources.values(), manifest.tokenizer
    return {
        "name": name,
        "key": manifest.key,
        "tokenizer": {"settings": dict(used.settings), "vocab_size": used.vocab_size},
        "totals": {
            "train_tokens": sum(record.train_tokens for record in records),
            "held_out_tokens": sum(record.held_out_tokens for record in records),
            "documents": sum(record.documents for record in records),
            "input_bytes": sum(one["bytes"] for one in chain(*inputs.values())),
        },
        "sources": {
            key: {
                **_source(manifest, key, sources[key]),
                "inputs": inputs[key],
                "mixture": dict(mixture.get(key, {})),
                "samples": [x.text[:SHOWN_CHARACTERS] for x in first[key][:SHOWN_DOCUMENTS]],
            }
            for key in manifest.sources
        },
        "stages": {work: _stage(work, one, stages) for work, one in manifest.stages.items()},
        "fertility": _fertility(first, sources, tokenizer),
    }


def _first_documents(name: str, source: Source | OpenSource) -> list[Document]:
    """Read the beginning of a source; token files have no text."""
    if isinstance(source, OpenSource):
        inputs = source.inputs
    else:
        inputs = () if source.tokens else find_inputs(name, source)
    documents = chain.from_iterable(one.documents() for one in inputs)
    return list(islice(documents, MEASURED_DOCUMENTS))


def _inputs(manifest: Manifest, name: str, stages: Path) -> list[Tree]:
    """Name what was read first: what went into the passes, or else into the token files.

    Bytes are those of the files, compressed or not. The folder of a pass may be deleted since.
    A card is published: it tells no folder of this machine.
    """
    inputs = _all_inputs(manifest, name, stages)
    return [{**one, "name": hide_folders(one["name"])} for one in inputs]


def _all_inputs(manifest: Manifest, name: str, stages: Path) -> list[Tree]:
    first = manifest.stages.get(RAW)
    folder = stages / f"{RAW}-{first.key[:12]}" if first else stages
    if first is None or name not in first.sources or not (folder / PLAN).exists():
        return [asdict(one) for one in manifest.sources[name].inputs]
    keys = ("name", "sha256", "bytes")
    pieces = chain.from_iterable(
        task.pieces for task in read_plan(folder).tasks if task.source == name
    )
    found = {piece.name: {key: getattr(piece, key) for key in keys} for piece in pieces}
    return list(found.values())


def _source(manifest: Manifest, name: str, source: Source) -> Tree:
    record = manifest.sources[name]
    passes = [one.sources[name] for one in manifest.stages.values() if name in one.sources]
    return {
        "language": source.language,
        "licence": source.licence or (licence_of(source.embedded) if source.embedded else None),
        "origin": source.origin,
        "documents": record.documents,
        "train_tokens": record.train_tokens,
        "held_out_tokens": record.held_out_tokens,
        "languages": dict(passes[-1].languages) if passes else {},
    }


def _stage(work: str, record: StageRecord, stages: Path) -> Tree:
    found = read_manifest(stages / f"{work}-{record.key[:12]}", record.key)
    return {
        "key": record.key,
        "sources": {key: asdict(counts) for key, counts in record.sources.items()},
        "examples": {} if found is None else dict(found.tally.examples),
    }


def _fertility(
    first: Mapping[str, list[Document]], sources: Mapping[str, Source], tokenizer: Tokenizer
) -> dict[str, dict[str, float]]:
    """Count tokens, words and bytes by language: the identified one, or the source's own."""
    by_language: dict[str, list[str]] = defaultdict(list)
    for name, documents in first.items():
        own = sources[name].language or name
        for one in documents:
            language = own if one.language == UNKNOWN else one.language
            by_language[language].append(one.text[:MEASURED_CHARACTERS])
    return {name: count_tokens(texts, tokenizer) for name, texts in sorted(by_language.items())}
