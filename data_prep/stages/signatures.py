"""The pass that writes MinHash signatures of clean text, to find near duplicates by.

It is a pass of its own, so that other signatures do not cost the cleaning again.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from components.config.schema.data import NearDuplicates
from data_prep.near_duplicates import write_signatures
from data_prep.stages.cut import check_piece
from data_prep.stages.plan import PassTask
from data_prep.stages.shards import read_shard
from data_prep.stages.tally import DocumentTally

VERSION = 2  # counts changes of data_prep.near_duplicates, too
SIGNATURES = ".signatures.npy"
BROKEN = "delete its folder and run the same command again"


def settings_of(near: NearDuplicates) -> dict[str, Any]:
    """Keep what signatures depend on: not how their slots are banded, nor the threshold."""
    slots = {"bands": near.bands * near.rows, "rows": 1, "threshold": "none"}
    return {**near.model_dump(mode="json"), **slots}


def work(
    task: PassTask, settings: Mapping[str, Any], stem: Path, tally: DocumentTally
) -> list[Path]:
    """Write the signatures of one shard, a row a document."""
    near = NearDuplicates.model_validate(settings)
    (piece,) = task.pieces
    check_piece(piece, task.source, BROKEN)
    file = stem.with_suffix(SIGNATURES)
    documents = 0

    def texts() -> Iterator[str]:
        nonlocal documents
        for document in read_shard(Path(str(piece.path))):
            size = len(document.text.encode())
            tally.keep(task.source, document.language, size, size, {})
            documents += 1
            yield document.text

    written = write_signatures(texts(), file, near)
    assert written == documents, "a document without a signature"
    return [file]
