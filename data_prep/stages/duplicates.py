"""The passes after cleaning: sign documents, find duplicates, drop them and personal data.

Of documents that are alike the first one stays, in the order of (source, input, document).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datatrove.data import Document as Text

from components.config.schema.data import NearDuplicates
from data_prep.near_duplicates import deal_back, find_duplicates, write_signatures
from data_prep.stages.clean import HASHES, build, settle, why_removed
from data_prep.stages.plan import PassTask
from data_prep.stages.record import DocumentTally
from data_prep.stages.shards import SUFFIX, read_shard, write_array, write_shard

SIGNATURES = ".signatures.npy"
VERDICTS = ".verdicts.npy"
KEEP, EXACT, NEAR = 0, 1, 2
REASONS = {EXACT: "exact duplicate", NEAR: "near duplicate"}
MOST_BYTES = 1 << 30  # of hashes in memory at a time; sorting takes about three times as much

Hashes = npt.NDArray[np.uint64]


def sign_task(
    task: PassTask, settings: Mapping[str, Any], stem: Path, tally: DocumentTally
) -> list[Path]:
    """Write the MinHash signatures of one shard; others do not cost the cleaning again."""
    near = NearDuplicates.model_validate(settings)
    (shard,) = task.checked_files(task.source)
    file = stem.with_suffix(SIGNATURES)

    def texts() -> Iterator[str]:
        for document in read_shard(shard):
            size = len(document.text.encode())
            tally.keep(task.source, document.language, size, size, {})
            yield document.text

    written = write_signatures(texts(), file, near)
    documents = tally.of_source(task.source).documents_out
    assert written == documents, "a document without a signature"
    return [file]


def find_task(
    task: PassTask, settings: Mapping[str, Any], stem: Path, tally: object
) -> list[Path]:
    """Write ``[documents]`` verdicts for each shard, in the order of the hash files."""
    files = task.checked_files("data.preparation.exact_duplicates")
    mapped = [np.load(file, mmap_mode="r") for file in files if file.name.endswith(HASHES)]
    hashes = [np.asarray(one).view(np.dtype("<u8")) for one in mapped]
    verdicts = [np.full(len(one), KEEP, np.uint8) for one in hashes]
    if settings["near_duplicates"] != "none":
        near = NearDuplicates.model_validate(settings["near_duplicates"])
        signatures = [file for file in files if file.name.endswith(SIGNATURES)]
        found = find_duplicates(signatures, near, stem.parent)
        for verdict, rows in zip(verdicts, found, strict=True):
            verdict[rows] = NEAR
    if settings["exact_duplicates"] != "none":
        for verdict, rows in zip(verdicts, find_exact(hashes, MOST_BYTES), strict=True):
            verdict[rows] = EXACT
    outputs = [stem.with_name(f"{number:06d}{VERDICTS}") for number in range(len(verdicts))]
    for output, verdict in zip(outputs, verdicts, strict=True):
        write_array(output, verdict)
    return outputs


def find_exact(hashes: Sequence[Hashes], most_bytes: int) -> list[npt.NDArray[np.int64]]:
    """For each ``[documents, 2]`` array of hashes, list the rows that have occurred before."""
    starts = np.cumsum([0, *map(len, hashes)])
    parts = 1 + sum(one.nbytes for one in hashes) // most_bytes
    repeated = [_repeated(hashes, starts, part, parts) for part in range(parts)]
    return deal_back(np.sort(np.concatenate(repeated)), starts)


def _repeated(
    hashes: Sequence[Hashes], starts: npt.NDArray[np.int64], part: int, parts: int
) -> npt.NDArray[np.int64]:
    """Number the documents, over all files, whose hash is of this part and was seen before."""
    chosen = [np.flatnonzero(one[:, 0] % np.uint64(parts) == part) for one in hashes]
    rows = np.concatenate([rows + start for rows, start in zip(chosen, starts, strict=False)])
    values = np.concatenate([one[rows] for one, rows in zip(hashes, chosen, strict=True)])
    order = np.lexsort((rows, values[:, 1], values[:, 0]))
    values = values[order]
    again = (values[1:] == values[:-1]).all(axis=1)
    return np.asarray(rows[order][1:][again], np.int64)


def keep_task(
    task: PassTask, settings: Mapping[str, Any], stem: Path, tally: DocumentTally
) -> list[Path]:
    """Drop what has a verdict, if there are any, and personal data; write the last shard."""
    shard, *verdict_files = task.checked_files(task.source)
    steps = build(settings["steps"], task.source)
    verdicts = iter(np.load(verdict_files[0]).tolist() if verdict_files else [])
    file = stem.with_suffix(SUFFIX)
    with write_shard(file) as add:
        for document in read_shard(shard):
            verdict = next(verdicts) if verdict_files else KEEP
            said = {"language": document.language, "personal_data": {}}
            text = Text(text=document.text, id="", metadata=said)
            why = REASONS.get(verdict) or why_removed(text, steps, longest_bytes="any")
            if kept := settle(task.source, document, text, why, tally):
                add(kept)
    assert next(verdicts, None) is None, "a verdict without a document"
    return [file]
