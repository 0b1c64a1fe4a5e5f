"""The last pass: drop the duplicates, remove personal data, write the shards that are used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document as Text

from data_prep.split import group_hash
from data_prep.stages import shards
from data_prep.stages.clean import build, why_removed
from data_prep.stages.cut import check_piece
from data_prep.stages.duplicates import KEEP, REASONS
from data_prep.stages.plan import PassTask
from data_prep.stages.shards import CleanText, read_shard, write_shard
from data_prep.stages.signatures import BROKEN
from data_prep.stages.tally import DocumentTally

VERSION = 2


def work(
    task: PassTask, settings: Mapping[str, Any], stem: Path, tally: DocumentTally
) -> list[Path]:
    """Write one shard; the task's pieces are a clean shard and, if searched for, verdicts."""
    for piece in task.pieces:
        check_piece(piece, task.source, BROKEN)
    shard, *verdict_files = (Path(str(piece.path)) for piece in task.pieces)
    steps = build(settings["steps"], task.source)
    verdicts = iter(np.load(verdict_files[0]).tolist() if verdict_files else [])
    file = stem.with_suffix(shards.SUFFIX)
    with write_shard(file) as add:
        for document in read_shard(shard):
            verdict = next(verdicts) if verdict_files else KEEP
            text = Text(text=document.text, id="", metadata={"language": document.language})
            why = REASONS.get(verdict) or why_removed(text, steps, longest_bytes="any")
            if why is not None:
                tally.remove(task.source, document.language, document.text, why)
                continue
            size = len(document.text.encode())
            replaced = text.metadata.get("personal_data", {})
            tally.keep(task.source, document.language, size, len(text.text.encode()), replaced)
            own = document.group == document.text
            kept = CleanText(text.text, text.text if own else document.group, document.language)
            add(kept)
            tally.hash_group(task.source, group_hash(kept))
    assert next(verdicts, None) is None, "a verdict without a document"
    return [file]
