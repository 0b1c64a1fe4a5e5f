"""The first pass: read, normalise, identify the language, filter, hash; why a document goes.

Writes a shard of clean text and, for the search for exact duplicates, 16 bytes for each of its
documents: always, so that searching can be switched on later without cleaning again.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datatrove.data import Document as Work

from components.config.schema.data import Source
from components.config.schema.document_steps import DocumentSteps
from components.errors import RecipeError
from data_prep.read import UNKNOWN, Document, LocalFile
from data_prep.sources import find_inputs, group_hash
from data_prep.stages.plan import InputPiece, PassTask
from data_prep.stages.record import DocumentTally
from data_prep.stages.shards import SUFFIX, write_array, write_shard

if TYPE_CHECKING:
    from data_prep.steps import DocumentStep  # slow: datatrove's filters

HASHES = ".hashes.npy"
HASH_BYTES = 16
CHANGED = "leave the inputs alone while the command runs; it takes them as they now are"


def build(settings: Mapping[str, Any], source: str) -> "list[DocumentStep]":
    """Build the document steps of those sections that ``settings`` has; the others are none."""
    if all(section == "none" for section in settings.values()):
        return []
    from data_prep.steps import build_steps  # slow: datatrove's filters

    none = dict.fromkeys(DocumentSteps.model_fields, "none")
    steps = DocumentSteps.model_validate({**none, **settings})
    return build_steps(steps, source=source, where="data.preparation")


def why_removed(
    document: Work, steps: "Sequence[DocumentStep]", *, longest_bytes: int | str
) -> str | None:
    """Apply the steps up to the first that removes; what begins or becomes empty goes, too."""
    size = len(document.text.encode())
    if isinstance(longest_bytes, int) and size > longest_bytes:
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


def settle(
    source: str, item: Document, document: Work, why: str | None, tally: DocumentTally
) -> Document | None:
    """Count ``item``, which goes if there is a reason why; else return what became of it."""
    language = str(document.metadata.get("language", UNKNOWN))
    if why is not None:
        tally.remove(source, language, item.text, why)
        return None
    sizes = len(item.text.encode()), len(document.text.encode())
    tally.keep(source, language, *sizes, document.metadata["personal_data"])
    kept = Document(document.text, item.group_name, language)
    tally.hash_group(source, group_hash(kept))
    return kept


def clean_task(
    task: PassTask, settings: Mapping[str, Any], stem: Path, tally: DocumentTally
) -> list[Path]:
    """Clean one task's documents; write a shard and ``[documents, 16]`` bytes of hashes."""
    name, read = task.source, settings["read"]
    steps = build(settings["steps"], name)
    source = Source.model_validate(settings["sources"][name])
    shard, hashes = stem.with_suffix(SUFFIX), stem.with_suffix(HASHES)
    digests = bytearray()
    with write_shard(shard) as add:
        for item in chain.from_iterable(read_piece(name, source, one) for one in task.pieces):
            if isinstance(item, RecipeError):
                if read["invalid"] == "refuse":
                    way = "or data.preparation.read.invalid=remove counts and removes it"
                    raise RecipeError(item.path, item.problem, f"{item.remedy}; {way}")
                tally.remove(name, UNKNOWN, "", f"invalid: {item.problem}")
                continue
            said = {**item.metadata, "personal_data": {}}
            said.pop("language", None)  # only what a step of ours says counts
            document = Work(text=item.text, id="", metadata=said)
            why = why_removed(document, steps, longest_bytes=read["longest_bytes"])
            if kept := settle(name, item, document, why, tally):
                add(kept)
                digests += hashlib.blake2b(kept.text.encode(), digest_size=HASH_BYTES).digest()
    write_array(hashes, np.frombuffer(digests, np.uint8).reshape(-1, HASH_BYTES))
    return [shard, hashes]


def read_piece(
    name: str, source: Source, piece: InputPiece
) -> Iterator[Document | RecipeError]:
    """Read a piece, and hold that from its beginning to its end it is what was hashed.

    Raises:
        RecipeError: it has vanished, or has changed since, or does so meanwhile.
    """
    where = f"data.sources.{name}"
    if piece.path is None:
        found = find_inputs(name, source.model_copy(update={"files": ()}))
        text_input = next(one for one in found if one.record().name == piece.name)
        if text_input.record().sha256 != piece.sha256:
            raise RecipeError(where, f"{piece.name} has changed since it was hashed", CHANGED)
        yield from text_input.items()
        return
    before = _state(piece.file)
    piece.check(where, CHANGED)
    # An embedded text is a file, too: named as one it is found once.
    alone = {"files": (piece.path,), "embedded": None, "dataset": None}
    (file,) = find_inputs(name, source.model_copy(update=alone))
    assert isinstance(file, LocalFile)
    yield from replace(file, name=piece.name, start=piece.start, end=piece.end).items()
    if _state(piece.file) != before:
        raise RecipeError(where, f"{piece.path} has changed while it was read", CHANGED)


def _state(path: Path) -> tuple[int, int] | None:
    """What changes with the content of a file, or soon after: its size and its time."""
    if not path.exists():
        return None
    found = path.stat()
    return found.st_size, found.st_mtime_ns
