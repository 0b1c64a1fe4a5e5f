"""Deal the inputs of a source to tasks of about the same size.

The cut depends on the inputs and ``shard_bytes`` alone, never on who works: so the result is
the same for any number of workers.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from components.data.files import FileRecord
from components.errors import RecipeError
from data_prep.formats import kind_of
from data_prep.hashes import HashFile, hash_file
from data_prep.read import Input, LocalFile
from data_prep.sources import OpenSource
from data_prep.stages.plan import InputPiece, PassTask

CUTTABLE = (".txt", ".jsonl")


def cut_source(
    name: str, source: OpenSource, shard_bytes: int, hashed: HashFile = hash_file
) -> Iterator[PassTask]:
    """Group whole inputs up to ``shard_bytes``; cut larger plain files into several tasks."""
    group: list[InputPiece] = []
    for text_input, record in zip(source.inputs, source.records, strict=True):
        pieces = list(_pieces(text_input, record, shard_bytes, hashed))
        size = sum(piece.bytes for piece in group)
        if group and size + sum(piece.bytes for piece in pieces) > shard_bytes:
            yield PassTask(source=name, pieces=tuple(group))
            group = []
        for piece in pieces[:-1]:
            yield PassTask(source=name, pieces=(piece,))
        group.append(pieces[-1])
    yield PassTask(source=name, pieces=tuple(group))


def whole(path: Path, record: FileRecord) -> InputPiece:
    """Take a file as one piece."""
    return InputPiece(
        name=record.name,
        path=str(path.absolute()),
        sha256=record.sha256,
        bytes=record.bytes,
        start=0,
        end=None,
    )


def _pieces(
    text_input: Input, record: FileRecord, shard_bytes: int, hashed: HashFile
) -> Iterator[InputPiece]:
    if not isinstance(text_input, LocalFile):
        yield InputPiece(
            name=record.name,
            path=None,
            sha256=record.sha256,
            bytes=record.bytes,
            start=0,
            end=None,
        )
    elif kind_of(text_input.path.name) in CUTTABLE and record.bytes > shard_bytes:
        yield from _ranges(text_input, record, shard_bytes, hashed)
    else:
        yield whole(text_input.path, record)


def _ranges(
    file: LocalFile, record: FileRecord, shard_bytes: int, hashed: HashFile
) -> Iterator[InputPiece]:
    cuts = [0, *_cuts(file.path, record.bytes, shard_bytes), record.bytes]
    for start, end in pairwise(cuts):
        yield InputPiece(
            name=record.name,
            path=str(file.path.absolute()),
            sha256=hashed(file.path, start, end),
            bytes=end - start,
            start=start,
            end=end,
        )


def _cuts(path: Path, size: int, shard_bytes: int) -> Iterator[int]:
    """Find the first end of a document at or behind each multiple of ``shard_bytes``."""
    position = 0
    with path.open("rb") as file:
        while (position := position + shard_bytes) < size:
            file.seek(position - 1)
            file.readline()
            while path.suffix == ".txt" and (line := file.readline()):
                if not line.strip():
                    break
            position = file.tell()
            if position < size:
                yield position


def check_piece(piece: InputPiece, where: str, remedy: str) -> None:
    """Refuse a file that is gone, or is not what was hashed when the plan was made.

    Raises:
        RecipeError: that is so.
    """
    assert piece.path is not None
    try:
        found = hash_file(Path(piece.path), piece.start, piece.end)
    except FileNotFoundError as error:
        raise RecipeError(
            where, f"{piece.path} has vanished since it was hashed", remedy
        ) from error
    if found != piece.sha256:
        raise RecipeError(where, f"{piece.path} has changed since it was hashed", remedy)
