"""The last pass: the token files of one shard, of its text to train on and of the held-out."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from components.build import build
from components.data.files import replace_atomically
from components.data.tokenizer import Tokenizer
from data_prep.encode import encode
from data_prep.split import HeldOutSplit
from data_prep.stages.cut import check_piece
from data_prep.stages.plan import PassTask
from data_prep.stages.shards import read_shard
from data_prep.stages.signatures import BROKEN

VERSION = 1  # counts changes of data_prep.encode and of the classes of tokenizers, too
SIDES = ("train", "held_out")
COUNTS = ".counts.json"


def work(task: PassTask, settings: Mapping[str, Any], stem: Path, tally: object) -> list[Path]:
    """Write a token file for each side, and how many documents each of them has.

    The task's pieces are a shard of text and the tokenizer's file.
    """
    for piece in task.pieces:
        check_piece(piece, task.source, BROKEN)
    shard, file = (Path(str(piece.path)) for piece in task.pieces)
    description = json.dumps(settings["tokenizer"], sort_keys=True)
    tokenizer = _loaded(description, file.parent, task.pieces[1].sha256)
    split = HeldOutSplit(**settings["splits"][task.source])
    files = [stem.with_suffix(f".{side}.tokens") for side in SIDES]
    parts = (split.train_text, split.held_out_text)
    # The shard is read once for each side: reading is quick beside encoding.
    documents = [
        encode(file, filter(None, map(part, read_shard(shard))), tokenizer).documents
        for file, part in zip(files, parts, strict=True)
    ]
    counts = stem.with_suffix(COUNTS)
    with replace_atomically(counts) as opened:
        opened.write(json.dumps(dict(zip(SIDES, documents, strict=True))).encode())
    return [*files, counts]


@lru_cache(maxsize=1)  # a large vocabulary takes seconds, as long as a shard
def _loaded(description: str, folder: Path, sha256: str) -> Tokenizer:
    """Load the tokenizer once for all tasks of a process, as long as its file is the same."""
    tokenizer: Tokenizer = build(json.loads(description), "tokenizer")
    tokenizer.load(folder)
    return tokenizer
