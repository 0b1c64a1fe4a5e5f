"""Tokenising clean text as passes: on the declared engine, resumable shard by shard.

The token files of the shards are then joined, so that the result is the one that a single
process writes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from components.data.files import FileRecord, read_blocks
from components.data.token_file import (
    TokenChunk,
    TokenFileRecord,
    little_endian,
    width_of,
    write_chunks,
)
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError
from data_prep.sources import OpenSource
from data_prep.stages import tokenizer as training
from data_prep.stages import tokens
from data_prep.stages.cut import whole
from data_prep.stages.engine import Passes
from data_prep.stages.plan import InputPiece, PassTask
from data_prep.stages.shards import CleanShard
from data_prep.tokenise import Sides, SplitText, take_tokenizer


@dataclass(frozen=True, kw_only=True)
class InPasses:
    """See :class:`data_prep.tokenise.Tokenise`; the sources are those of a cleaned corpus."""

    passes: Passes

    def train(
        self,
        text: SplitText,
        tokenizer: Tokenizer,
        sample_bytes: int | Literal["all"],
        folder: Path,
    ) -> tuple[FileRecord, ...]:
        shards = {name: _shards(source) for name, source in text.sources.items()}
        settings = {
            **_settings(text, tokenizer),
            "sample_bytes": sample_bytes,
            "shards": {name: len(pieces) for name, pieces in shards.items()},
        }
        task = PassTask(
            source="", pieces=tuple(one for pieces in shards.values() for one in pieces)
        )
        done = self.passes.run(training, settings, [task])
        (outputs,) = done.manifest.outputs
        files = tuple(replace(file, name=str(done.folder / file.name)) for file in outputs)
        take_tokenizer(tokenizer, files, folder)
        return files

    def write(
        self, text: SplitText, tokenizer: Tokenizer, files: tuple[FileRecord, ...], folder: Path
    ) -> dict[str, Sides]:
        """Write the token files.

        Raises:
            RecipeError: see :func:`data_prep.stages.engine.run_pass`; or the token file of a
                shard was changed.
        """
        file = whole(Path(files[0].name), files[0])
        tasks = [
            PassTask(source=name, pieces=(shard, file))
            for name, source in text.sources.items()
            for shard in _shards(source)
        ]
        done = self.passes.run(tokens, _settings(text, tokenizer), tasks)
        return {
            name: _join(folder, name, list(done.pieces(name)), tokenizer.vocab_size)
            for name in text.sources
        }


def _settings(text: SplitText, tokenizer: Tokenizer) -> dict[str, Any]:
    kind = type(tokenizer)
    target = {"_target_": f"{kind.__module__}.{kind.__qualname__}"}
    return {
        "tokenizer": {**target, **tokenizer.settings()},
        "splits": {name: asdict(split) for name, split in text.splits.items()},
    }


def _shards(source: OpenSource) -> list[InputPiece]:
    shards = [one for one in source.inputs if isinstance(one, CleanShard)]
    assert len(shards) == len(source.inputs), "passes read clean text alone"
    return [whole(shard.path, shard.expected) for shard in shards]


def _join(
    folder: Path, name: str, shards: list[tuple[InputPiece, ...]], vocab_size: int
) -> Sides:
    counts = [json.loads(Path(str(each[-1].path)).read_bytes()) for each in shards]
    train, held_out = (
        _join_side(folder / f"{name}.{side}.tokens", side, number, shards, counts, vocab_size)
        for number, side in enumerate(tokens.SIDES)
    )
    return train, held_out


def _join_side(
    path: Path,
    side: str,
    number: int,
    shards: list[tuple[InputPiece, ...]],
    counts: list[Mapping[str, int]],
    vocab_size: int,
) -> TokenFileRecord:
    def chunks() -> Iterator[TokenChunk]:
        for pieces, count in zip(shards, counts, strict=True):
            documents = count[side]
            for block in _checked(pieces[number]):
                yield TokenChunk(
                    np.frombuffer(block, little_endian(width_of(vocab_size))), documents
                )
                documents = 0

    return write_chunks(path, chunks(), vocab_size=vocab_size)


def _checked(piece: InputPiece) -> Iterator[bytes]:
    """Read a file in blocks of whole tokens.

    Raises:
        RecipeError: in the end it is not what the pass wrote.
    """
    path, digest = Path(str(piece.path)), hashlib.sha256()
    for block in read_blocks(path):
        digest.update(block)
        yield block
    if digest.hexdigest() != piece.sha256:
        remedy = f"delete {path.parent} and run the same command again"
        raise RecipeError(str(path), "was changed since its stage wrote it", remedy)
