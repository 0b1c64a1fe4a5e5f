"""The pass that writes MinHash signatures of clean text, to find near duplicates by.

It is a pass of its own, so that other signatures do not cost the cleaning again.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from data_prep.stages.cut import check_piece
from data_prep.stages.plan import Task
from data_prep.stages.shards import read_shard
from data_prep.stages.tally import Tally

VERSION = 1
SIGNATURES = ".signatures.npy"
BROKEN = "delete its folder and run the same command again"


def work(task: Task, settings: Mapping[str, Any], stem: Path, tally: Tally) -> list[Path]:
    """Write the signatures of one shard, a row a document."""
    near = import_module("data_prep.near_duplicates")
    (piece,) = task.pieces
    check_piece(piece, task.source, BROKEN)
    file = stem.with_suffix(SIGNATURES)
    documents = 0

    def texts() -> Iterator[str]:
        nonlocal documents
        for document in read_shard(Path(str(piece.path))):
            size = len(document.text.encode())
            tally.keep(task.source, document.language, size, size)
            documents += 1
            yield document.text

    written = near.write_signatures(texts(), file, near.settings_of(settings))
    assert written == documents, "a document without a signature"
    return [file]
