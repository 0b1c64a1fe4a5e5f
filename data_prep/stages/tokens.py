"""The last passes: train the tokenizer, in one task, and encode the shards of clean text.

The shards' token files are then joined: the result is what a single process writes.
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

from components.build import build
from components.config.tokenizer_spec import id_width
from components.data import token_file
from components.data.files import FileRecord, read_blocks, replace_atomically
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError
from data_prep.sources import HeldOutSplit, OpenSource
from data_prep.stages.passes import Passes
from data_prep.stages.plan import InputPiece, PassTask, whole
from data_prep.stages.shards import CleanShard, read_shard
from data_prep.tokenise import FILE_NAMES, Sides, TokeniseTask, take_tokenizer, training_texts

SIDES = ("train", "held_out")
COUNTS = ".counts.json"


@dataclass(frozen=True, kw_only=True)
class InPasses:
    """See :class:`data_prep.tokenise.Tokenise`; the sources are those of a cleaned corpus."""

    passes: Passes

    def train(self, task: TokeniseTask) -> tuple[FileRecord, ...]:
        shards = {name: _shards(source) for name, source in task.sources.items()}
        numbers = {name: len(pieces) for name, pieces in shards.items()}
        settings = {**_settings(task), "sample_bytes": task.sample_bytes, "shards": numbers}
        every = PassTask(source="", pieces=tuple(chain.from_iterable(shards.values())))
        done = self.passes.run("tokenizer", settings, [every])
        (outputs,) = done.manifest.outputs
        files = tuple(replace(file, name=str(done.folder / file.name)) for file in outputs)
        take_tokenizer(task.tokenizer, files, task.folder)
        return files

    def write(self, task: TokeniseTask, files: tuple[FileRecord, ...]) -> dict[str, Sides]:
        """Write the token files.

        Raises:
            RecipeError: see :meth:`Passes.run`; or the token file of a shard was changed.
        """
        file = whole(Path(files[0].name), files[0])
        each = [
            PassTask(source=name, pieces=(shard, file))
            for name, source in task.sources.items()
            for shard in _shards(source)
        ]
        done = self.passes.run("tokens", _settings(task), each)
        vocab_size = task.tokenizer.vocab_size

        def join(name: str, number: int) -> token_file.TokenFileRecord:
            path = task.folder / f"{name}.{SIDES[number]}.tokens"
            chunks = _chunks(done.pieces(name), number, vocab_size)
            return token_file.write_chunks(path, chunks, vocab_size=vocab_size)

        return {name: (join(name, 0), join(name, 1)) for name in task.sources}


def _settings(task: TokeniseTask) -> dict[str, Any]:
    kind = type(task.tokenizer)
    target = {"_target_": f"{kind.__module__}.{kind.__qualname__}"}
    return {
        "tokenizer": {**target, **task.tokenizer.settings()},
        "splits": {name: asdict(split) for name, split in task.splits.items()},
    }


def _shards(source: OpenSource) -> list[InputPiece]:
    shards = [one for one in source.inputs if isinstance(one, CleanShard)]
    assert len(shards) == len(source.inputs), "passes read clean text alone"
    return [whole(shard.path, shard.expected) for shard in shards]


def _chunks(
    shards: Iterator[tuple[InputPiece, ...]], number: int, vocab_size: int
) -> Iterator[token_file.TokenChunk]:
    """Read the token files of one side; the first chunk of each counts its documents."""
    dtype = token_file.little_endian(id_width(vocab_size))
    for pieces in shards:
        documents = json.loads(pieces[-1].file.read_bytes())[SIDES[number]]
        for block in _checked(pieces[number]):
            yield np.frombuffer(block, dtype), documents
            documents = 0


def _checked(piece: InputPiece) -> Iterator[bytes]:
    """Read a file in blocks of whole tokens.

    Raises:
        RecipeError: in the end it is not what the pass wrote.
    """
    digest = hashlib.sha256()
    for block in read_blocks(piece.file):
        digest.update(block)
        yield block
    if digest.hexdigest() != piece.sha256:
        remedy = f"delete {piece.file.parent} and run the same command again"
        raise RecipeError(str(piece.file), "was changed since its stage wrote it", remedy)


def train_task(
    task: PassTask, settings: Mapping[str, Any], stem: Path, tally: object
) -> list[Path]:
    """Train on the shards, ``settings["shards"]`` of each source, never on held-out text."""
    shards = iter(task.checked_files("tokenizer"))
    sources = {
        name: chain.from_iterable(map(read_shard, list(islice(shards, number))))
        for name, number in settings["shards"].items()
    }
    splits = {name: HeldOutSplit(**split) for name, split in settings["splits"].items()}
    tokenizer = build(settings["tokenizer"], "tokenizer")
    tokenizer.train(training_texts(sources, splits, settings["sample_bytes"]), stem.parent)
    return [path for name in FILE_NAMES if (path := stem.parent / name).is_file()]


def encode_task(
    task: PassTask, settings: Mapping[str, Any], stem: Path, tally: object
) -> list[Path]:
    """Write a token file for each side of a shard of text, and how many documents it has."""
    shard, tokenizer_file = task.checked_files(task.source)
    description = json.dumps(settings["tokenizer"], sort_keys=True)
    tokenizer = _loaded(description, tokenizer_file.parent, task.pieces[1].sha256)
    split = HeldOutSplit(**settings["splits"][task.source])
    files = [stem.with_suffix(f".{side}.tokens") for side in SIDES]
    parts = (split.train_text, split.held_out_text)
    # The shard is read once for each side: reading is quick beside encoding.
    documents = [
        token_file.encode(file, filter(None, map(part, read_shard(shard))), tokenizer).documents
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
