"""The pass that trains the tokenizer, in one task: on text to train on, never on held-out."""

from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from components.build import build
from data_prep.split import HeldOutSplit
from data_prep.stages.cut import check_piece
from data_prep.stages.plan import InputPiece, PassTask
from data_prep.stages.shards import read_shard
from data_prep.stages.signatures import BROKEN
from data_prep.tokenise import FILE_NAMES, training_texts

VERSION = 1  # counts changes of the classes of tokenizers, too


def work(task: PassTask, settings: Mapping[str, Any], stem: Path, tally: object) -> list[Path]:
    """Train on the shards, ``settings["shards"]`` of each source, and name the files."""
    for piece in task.pieces:
        check_piece(piece, "tokenizer", BROKEN)
    pieces = iter(task.pieces)
    sources = {
        name: partial(_documents, [next(pieces) for _ in range(number)])
        for name, number in settings["shards"].items()
    }
    splits = {name: HeldOutSplit(**split) for name, split in settings["splits"].items()}
    tokenizer = build(settings["tokenizer"], "tokenizer")
    tokenizer.train(training_texts(sources, splits, settings["sample_bytes"]), stem.parent)
    return [path for name in FILE_NAMES if (path := stem.parent / name).is_file()]


def _documents(pieces: list[InputPiece]) -> Any:
    return chain.from_iterable(read_shard(Path(str(piece.path))) for piece in pieces)
