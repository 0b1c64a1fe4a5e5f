"""The first pass: read, normalise, identify the language, filter; hash what stays.

Writes a shard of clean text and, for the search for exact duplicates, 16 bytes for each of its
documents: always, so that searching can be switched on later without cleaning again.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document as Text

from components.errors import RecipeError
from components.spec.sections import Source
from data_prep.read import Document, Input, LocalFile
from data_prep.sources import find_inputs
from data_prep.stages import shards
from data_prep.stages.cut import check_piece
from data_prep.stages.plan import Piece, Task
from data_prep.stages.removal import Step, build, why_removed
from data_prep.stages.shards import CleanText, write_shard
from data_prep.stages.tally import Tally

VERSION = 1
HASHES = ".hashes.npy"
HASH_BYTES = 16
CHANGED = "leave the inputs alone while the command runs; it takes them as they now are"


def work(task: Task, settings: Mapping[str, Any], stem: Path, tally: Tally) -> list[Path]:
    """Clean one task's documents; return the files: ``[documents, 16]`` bytes of hashes."""
    steps = build(settings["steps"])
    source = settings["sources"][task.source]
    shard, hashes = stem.with_suffix(shards.SUFFIX), stem.with_suffix(HASHES)
    digests = bytearray()
    with write_shard(shard) as add:
        for piece in task.pieces:
            where = f"data.sources.{task.source}"
            for item in read_piece(task.source, source, piece, where):
                if isinstance(item, RecipeError):
                    _refuse_or_count(item, settings["read"]["invalid"], task.source, tally)
                    continue
                text = Text(text=item.text, id="", metadata={})
                if source["language"]:
                    text.metadata["expected_language"] = source["language"]
                kept = _clean(item, text, steps, settings["read"], task.source, tally)
                if kept is not None:
                    add(kept)
                    digests += hashlib.blake2b(
                        kept.text.encode(), digest_size=HASH_BYTES
                    ).digest()
    shards.write_array(hashes, np.frombuffer(digests, np.uint8).reshape(-1, HASH_BYTES))
    return [shard, hashes]


def _clean(
    item: Document,
    text: Text,
    steps: Sequence[Step],
    read: Mapping[str, Any],
    source: str,
    tally: Tally,
) -> CleanText | None:
    why = why_removed(text, steps, longest_bytes=read["longest_bytes"])
    language = str(text.metadata.get("language", shards.UNKNOWN))
    if why is not None:
        tally.remove(source, language, item.text, why)
        return None
    tally.keep(source, language, len(item.text.encode()), len(text.text.encode()))
    group = text.text if item.group == item.text else item.group
    return CleanText(text.text, group, language)


def _refuse_or_count(error: RecipeError, rule: str, source: str, tally: Tally) -> None:
    if rule == "refuse":
        raise RecipeError(
            error.path,
            error.problem,
            f"{error.remedy}; or data.preparation.read.invalid=remove counts and removes it",
        )
    tally.remove(source, shards.UNKNOWN, "", f"invalid: {error.problem}")


def read_piece(
    name: str, source: Mapping[str, Any], piece: Piece, where: str
) -> Iterator[Document | RecipeError]:
    """Read a piece, and hold that from its beginning to its end it is what was hashed.

    Raises:
        RecipeError: it has vanished, or has changed since, or does so meanwhile.
    """
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


def _open(name: str, source: Mapping[str, Any], piece: Piece) -> Input:
    """Find the input again by the recipe's own words, narrowed to one file."""
    places: dict[str, Any] = {"files": [], "embedded": piece.name}
    if piece.path is not None:
        places = {"files": [piece.path], "embedded": None}
    (found,) = find_inputs(name, Source.model_validate({**source, **places}))
    if isinstance(found, LocalFile):
        return replace(found, name=piece.name, start=piece.start, end=piece.end)
    return found


def _state(path: Path) -> tuple[int, int] | None:
    """What changes with the content of a file, or soon after: its size and its time."""
    if not path.exists():
        return None
    found = path.stat()
    return found.st_size, found.st_mtime_ns
