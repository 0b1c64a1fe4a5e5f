"""The first pass: read, normalise, identify the language, filter, hash; why a document goes.

Writes a shard of clean text and, for the search for exact duplicates, 16 bytes for each of its
documents: always, so that searching can be switched on later without cleaning again.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datatrove.data import Document as Work

from components.config.schema.data import Source
from components.config.schema.document_steps import DocumentSteps
from components.errors import RecipeError
from data_prep.read import Document, Input, LocalFile, Text
from data_prep.sources import find_inputs
from data_prep.split import group_hash
from data_prep.stages import shards
from data_prep.stages.cut import check_piece
from data_prep.stages.plan import InputPiece, PassTask
from data_prep.stages.shards import CleanText, write_shard
from data_prep.stages.tally import DocumentTally

if TYPE_CHECKING:
    from data_prep.steps import DocumentStep

WHERE = "data.preparation"


def build(settings: Mapping[str, Any], source: str) -> "list[DocumentStep]":
    """Build the document steps of those sections that ``settings`` has; the others are none."""
    if all(section == "none" for section in settings.values()):
        return []
    from data_prep.steps import build_steps  # slow to import: only who has steps pays

    none = dict.fromkeys(DocumentSteps.model_fields, "none")
    steps = DocumentSteps.model_validate({**none, **settings})
    return build_steps(steps, source=source, where=WHERE)


def why_removed(
    document: Work, steps: "Sequence[DocumentStep]", *, longest_bytes: int | str
) -> str | None:
    """Apply the steps up to the first that removes; what begins or becomes empty goes, too."""
    if isinstance(longest_bytes, int):
        size = len(document.text.encode())
        if size > longest_bytes:
            return f"too long: {size:,} bytes > {longest_bytes:,}"
    if not document.text.strip():
        return "empty"
    for step in steps:
        why = step(document)
        if why is not None:
            return why
        if not document.text.strip():
            return f"empty: after {step.name}"
    return None


VERSION = 2  # counts changes of the document steps, too
HASHES = ".hashes.npy"
HASH_BYTES = 16
CHANGED = "leave the inputs alone while the command runs; it takes them as they now are"


def work(
    task: PassTask, settings: Mapping[str, Any], stem: Path, tally: DocumentTally
) -> list[Path]:
    """Clean one task's documents; write a shard and ``[documents, 16]`` bytes of hashes."""
    steps = build(settings["steps"], task.source)
    source = Source.model_validate(settings["sources"][task.source])
    shard, hashes = stem.with_suffix(shards.SUFFIX), stem.with_suffix(HASHES)
    digests = bytearray()
    with write_shard(shard) as add:
        for piece in task.pieces:
            for item in read_piece(task.source, source, piece):
                if isinstance(item, RecipeError):
                    _refuse_or_count(item, settings["read"]["invalid"], task.source, tally)
                    continue
                kept = _clean(
                    item, steps, settings["read"]["longest_bytes"], task.source, tally
                )
                if kept is not None:
                    add(kept)
                    digests += _hash(kept.text)
                    tally.hash_group(task.source, group_hash(kept))
    shards.write_array(hashes, np.frombuffer(digests, np.uint8).reshape(-1, HASH_BYTES))
    return [shard, hashes]


def _clean(
    item: Document,
    steps: "Sequence[DocumentStep]",
    longest_bytes: int | str,
    source: str,
    tally: DocumentTally,
) -> CleanText | None:
    metadata = dict(item.metadata) if isinstance(item, Text) else {}
    metadata.pop("language", None)  # only what a step of ours says counts
    document = Work(text=item.text, id="", metadata=metadata)
    why = why_removed(document, steps, longest_bytes=longest_bytes)
    language = str(document.metadata.get("language", shards.UNKNOWN))
    if why is not None:
        tally.remove(source, language, item.text, why)
        return None
    text = document.text
    tally.keep(source, language, len(item.text.encode()), len(text.encode()), {})
    return CleanText(text, text if item.group == item.text else item.group, language)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def _refuse_or_count(error: RecipeError, rule: str, source: str, tally: DocumentTally) -> None:
    if rule == "refuse":
        raise RecipeError(
            error.path,
            error.problem,
            f"{error.remedy}; or data.preparation.read.invalid=remove counts and removes it",
        )
    tally.remove(source, shards.UNKNOWN, "", f"invalid: {error.problem}")


def read_piece(
    name: str, source: Source, piece: InputPiece
) -> Iterator[Document | RecipeError]:
    """Read a piece, and hold that from its beginning to its end it is what was hashed.

    Raises:
        RecipeError: it has vanished, or has changed since, or does so meanwhile.
    """
    where = f"data.sources.{name}"
    if piece.path is None:
        text_input = _open(name, source, piece)
        if text_input.record().sha256 != piece.sha256:
            raise RecipeError(where, f"{piece.name} has changed since it was hashed", CHANGED)
        yield from text_input.items()
        return
    path = Path(piece.path)
    before = _state(path)
    check_piece(piece, where, CHANGED)
    yield from _open(name, source, piece).items()
    if _state(path) != before:
        raise RecipeError(where, f"{piece.path} has changed while it was read", CHANGED)


def _open(name: str, source: Source, piece: InputPiece) -> Input:
    """Find the input again by the recipe's own words, narrowed to one file."""
    if piece.path is None:
        found = find_inputs(name, source.model_copy(update={"files": ()}))
        return next(one for one in found if one.record().name == piece.name)
    # An embedded text is a file, too: named as one it is found once.
    alone = {"files": (piece.path,), "embedded": None, "dataset": None}
    (file,) = find_inputs(name, source.model_copy(update=alone))
    assert isinstance(file, LocalFile)
    return replace(file, name=piece.name, start=piece.start, end=piece.end)


def _state(path: Path) -> tuple[int, int] | None:
    """What changes with the content of a file, or soon after: its size and its time."""
    if not path.exists():
        return None
    found = path.stat()
    return found.st_size, found.st_mtime_ns
