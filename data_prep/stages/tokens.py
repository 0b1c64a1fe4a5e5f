"""Last stages: train the tokenizer in one task, and encode the shards of clean text.

The token files of the shards are then joined. The result equals that of a single process.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from components.build import build_node
from components.config.tokenizer_spec import id_width
from components.data import token_file
from components.data.files import FileRecord, read_blocks, write_atomically
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError
from data_prep.sources import HeldOutSplit, OpenSource
from data_prep.stages.plan import InputPiece, StageTask, make_whole_piece
from data_prep.stages.runner import Stage, StageRunner
from data_prep.stages.shards import CleanShard, read_shard
from data_prep.tokenise import FILE_NAMES, Sides, TokeniseTask, take_tokenizer, training_texts

SIDES = ("train", "held_out")
COUNTS = ".counts.json"


@dataclass(frozen=True, kw_only=True)
class StagedTokenise:
    """Tokenization of a cleaned corpus as stages; see :class:`data_prep.tokenise.Tokenise`."""

    runner: StageRunner

    def train_tokenizer(self, task: TokeniseTask) -> tuple[FileRecord, ...]:
        shards = {name: _shards(source) for name, source in task.sources.items()}
        numbers = {name: len(pieces) for name, pieces in shards.items()}
        settings = {**_settings(task), "sample_bytes": task.sample_bytes, "shards": numbers}
        training = StageTask(source="", pieces=tuple(chain.from_iterable(shards.values())))
        stage = self.runner.run_stage("tokenizer", settings, [training])
        (outputs,) = stage.manifest.outputs
        files = tuple(replace(file, name=str(stage.folder / file.name)) for file in outputs)
        take_tokenizer(task.tokenizer, files, task.folder)
        return files

    def write_token_files(
        self, task: TokeniseTask, files: tuple[FileRecord, ...]
    ) -> dict[str, Sides]:
        """Write the token files."""
        file = make_whole_piece(Path(files[0].name), files[0])
        tasks = [
            StageTask(source=name, pieces=(shard, file))
            for name, source in task.sources.items()
            for shard in _shards(source)
        ]
        stage = self.runner.run_stage("tokens", _settings(task), tasks)
        vocab_size = task.tokenizer.vocab_size

        def join_parts(name: str, number: int) -> token_file.TokenFileRecord:
            path = task.folder / f"{name}.{SIDES[number]}.tokens"
            chunks = _chunks(stage, name, number, vocab_size)
            return token_file.write_chunks(path, chunks, vocab_size=vocab_size)

        return {name: (join_parts(name, 0), join_parts(name, 1)) for name in task.sources}


def _settings(task: TokeniseTask) -> dict[str, Any]:
    kind = type(task.tokenizer)
    target = {"_target_": f"{kind.__module__}.{kind.__qualname__}"}
    return {
        "tokenizer": {**target, **task.tokenizer.get_settings()},
        "splits": {name: asdict(split) for name, split in task.splits.items()},
    }


def _shards(source: OpenSource) -> list[InputPiece]:
    shards = [shard for shard in source.inputs if isinstance(shard, CleanShard)]
    assert len(shards) == len(source.inputs), "stages read clean text alone"
    return [make_whole_piece(shard.path, shard.expected) for shard in shards]


def _chunks(
    done: Stage, source: str, side: int, vocab_size: int
) -> Iterator[token_file.TokenChunk]:
    """Yield the tokens of one side; a file's first chunk has the count of its documents."""
    dtype = token_file.little_endian(id_width(vocab_size))
    for number, task in enumerate(done.plan.tasks):
        if task.source == source:
            counts = json.loads(done.output_piece(number, len(SIDES)).file_path.read_bytes())
            documents = counts[SIDES[side]]
            for block in _checked(done.output_piece(number, side)):
                yield np.frombuffer(block, dtype), documents
                documents = 0


def _checked(piece: InputPiece) -> Iterator[bytes]:
    """Read a file in blocks of whole tokens; then compare the hash with the stage's."""
    digest = hashlib.sha256()
    for block in read_blocks(piece.file_path):
        digest.update(block)
        yield block
    if digest.hexdigest() != piece.sha256:
        remedy = f"delete {piece.file_path.parent} and run the same command again"
        raise RecipeError(str(piece.file_path), "was changed after its stage wrote it", remedy)


def train_task(
    task: StageTask, settings: Mapping[str, Any], stem: Path, tally: object
) -> list[Path]:
    """Train on the shards, ``settings["shards"]`` of each source, never on held-out text."""
    shards = iter(task.checked_files("tokenizer"))
    sources = {
        name: chain.from_iterable(map(read_shard, list(islice(shards, number))))
        for name, number in settings["shards"].items()
    }
    splits = {name: HeldOutSplit(**split) for name, split in settings["splits"].items()}
    tokenizer = build_node(settings["tokenizer"], "tokenizer")
    tokenizer.train_on_texts(
        training_texts(sources, splits, settings["sample_bytes"]), stem.parent
    )
    return [path for name in FILE_NAMES if (path := stem.parent / name).is_file()]


def encode_task(
    task: StageTask, settings: Mapping[str, Any], stem: Path, tally: object
) -> list[Path]:
    """Write a token file for each side of a shard, and the number of documents on each side."""
    shard, tokenizer_file = task.checked_files(task.source)
    description = json.dumps(settings["tokenizer"], sort_keys=True)
    tokenizer = _loaded(description, tokenizer_file.parent, task.pieces[1].sha256)
    split = HeldOutSplit(**settings["splits"][task.source])
    files = [stem.with_suffix(f".{side}.tokens") for side in SIDES]
    parts = (split.train_text, split.held_out_text)
    # The shard is read once for each side, because reading is fast compared to encoding.
    documents = [
        token_file.encode_to_file(
            file, filter(None, map(part, read_shard(shard))), tokenizer
        ).documents
        for file, part in zip(files, parts, strict=True)
    ]
    counts = stem.with_suffix(COUNTS)
    write_atomically(counts, json.dumps(dict(zip(SIDES, documents, strict=True))))
    return [*files, counts]


@lru_cache(maxsize=1)  # loading a large vocabulary takes seconds, as long as encoding a shard
def _loaded(description: str, folder: Path, sha256: str) -> Tokenizer:
    """Load the tokenizer once per process, as long as its file is the same."""
    tokenizer: Tokenizer = build_node(json.loads(description), "tokenizer")
    tokenizer.load_file(folder)
    return tokenizer
