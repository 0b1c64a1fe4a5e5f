"""Stages after cleaning: sign documents, find duplicates, remove them and personal data.

Of similar documents the first one is kept, in the order of (source, input, document).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datatrove.data import Document as Text

from components.config.schema.data import NearDuplicates
from data_prep.near_duplicates import deal_back, find_duplicates, write_signatures
from data_prep.stages.clean import (
    HASH_BYTES,
    HASHES,
    build_stage_steps,
    finish_document,
    why_removed,
)
from data_prep.stages.plan import StageTask
from data_prep.stages.record import DocumentTally
from data_prep.stages.shards import SUFFIX, read_shard, write_array, write_shard

SIGNATURES = ".signatures.npy"
VERDICTS = ".verdicts.npy"
KEEP, EXACT, NEAR = 0, 1, 2
REASONS = {EXACT: "exact duplicate", NEAR: "near duplicate"}
MOST_BYTES = 1 << 30  # hashes in memory at a time; sorting needs about three times as much

HashArray = npt.NDArray[np.uint64]


def sign_task(
    task: StageTask, settings: Mapping[str, Any], stem: Path, tally: DocumentTally
) -> list[Path]:
    """Write the MinHash signatures of one shard; new settings do not repeat the cleaning."""
    near = NearDuplicates.model_validate(settings)
    (shard,) = task.checked_files(task.source)
    file = stem.with_suffix(SIGNATURES)

    def iter_texts() -> Iterator[str]:
        for document in read_shard(shard):
            size = len(document.text.encode())
            tally.count_document(task.source, document.language, size, size, {})
            yield document.text

    written = write_signatures(iter_texts(), file, near)
    documents = tally.of_source(task.source).documents_out
    assert written == documents, "a document without a signature"
    return [file]


def find_task(
    task: StageTask, settings: Mapping[str, Any], stem: Path, tally: object
) -> list[Path]:
    """Write ``[documents]`` verdicts for each shard, in the order of the hash files."""
    files = task.checked_files("data.preparation.exact_duplicates")
    hash_files = [file for file in files if file.name.endswith(HASHES)]
    verdicts = [np.full(len(read_hashes(file)), KEEP, np.uint8) for file in hash_files]
    if settings["near_duplicates"] != "none":
        near = NearDuplicates.model_validate(settings["near_duplicates"])
        signatures = [file for file in files if file.name.endswith(SIGNATURES)]
        repeated = find_duplicates(signatures, near, stem.parent)
        for verdict, rows in zip(verdicts, repeated, strict=True):
            verdict[rows] = NEAR
    if settings["exact_duplicates"] != "none":
        repeated = find_exact(hash_files, MOST_BYTES)
        for verdict, rows in zip(verdicts, repeated, strict=True):
            verdict[rows] = EXACT
    outputs = [stem.with_name(f"{number:06d}{VERDICTS}") for number in range(len(verdicts))]
    for output, verdict in zip(outputs, verdicts, strict=True):
        write_array(output, verdict)
    return outputs


def read_hashes(file: Path) -> HashArray:
    """Map ``[documents, 2]`` hashes; each map keeps a file descriptor open, so keep few."""
    hashes: HashArray = np.load(file, mmap_mode="r").view(np.dtype("<u8"))
    return hashes


def find_exact(files: Sequence[Path], most_bytes: int) -> list[npt.NDArray[np.int64]]:
    """Return for each file of hashes the rows with a hash that occurred before."""
    starts = np.cumsum([0, *(len(read_hashes(file)) for file in files)])
    parts = 1 + int(starts[-1]) * HASH_BYTES // most_bytes
    repeated = [_repeated(files, starts, part, parts) for part in range(parts)]
    return deal_back(np.sort(np.concatenate(repeated)), starts)


def _repeated(
    files: Sequence[Path], starts: npt.NDArray[np.int64], part: int, parts: int
) -> npt.NDArray[np.int64]:
    """Return the global numbers of repeated documents in hash partition ``part``."""
    places, chosen = [], []
    for file, start in zip(files, starts, strict=False):
        hashes = read_hashes(file)
        rows = np.flatnonzero(hashes[:, 0] % np.uint64(parts) == part)
        places.append(rows + start)
        chosen.append(np.array(hashes[rows]))
    rows, values = np.concatenate(places), np.concatenate(chosen)
    order = np.lexsort((rows, values[:, 1], values[:, 0]))
    values = values[order]
    is_repeat = (values[1:] == values[:-1]).all(axis=1)
    return np.asarray(rows[order][1:][is_repeat], np.int64)


def keep_task(
    task: StageTask, settings: Mapping[str, Any], stem: Path, tally: DocumentTally
) -> list[Path]:
    """Remove documents with a verdict, if any, and personal data; write the final shard."""
    shard, *verdict_files = task.checked_files(task.source)
    steps = build_stage_steps(settings["steps"], task.source)
    verdicts = iter(np.load(verdict_files[0]).tolist() if verdict_files else [])
    file = stem.with_suffix(SUFFIX)
    with write_shard(file) as add:
        for document in read_shard(shard):
            verdict = next(verdicts) if verdict_files else KEEP
            metadata = {"language": document.language, "personal_data": {}}
            text = Text(text=document.text, id="", metadata=metadata)
            reason = REASONS.get(verdict) or why_removed(text, steps, longest_bytes="any")
            if cleaned := finish_document(task.source, document, text, reason, tally):
                add(cleaned)
    assert next(verdicts, None) is None, "a verdict without a document"
    return [file]
