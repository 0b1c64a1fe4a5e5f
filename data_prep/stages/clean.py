"""First stage: read, normalize, identify the language, filter, hash; record removal reasons.

It writes a shard of clean text, and 16 bytes per document for the search for exact duplicates.
The hashes are always written, so that the search can be enabled later without cleaning again.
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
from data_prep.read import UNKNOWN, Document
from data_prep.sources import find_inputs, group_hash, open_files
from data_prep.stages.plan import InputPiece, StageTask
from data_prep.stages.record import DocumentTally
from data_prep.stages.shards import SUFFIX, write_array, write_shard

if TYPE_CHECKING:
    from data_prep.steps import DocumentStep  # slow: datatrove's filters

HASHES = ".hashes.npy"
HASH_BYTES = 16
CHANGED = "run the command again, and do not change the inputs while it runs"


def build_stage_steps(settings: Mapping[str, Any], source: str) -> "list[DocumentStep]":
    """Build the document steps of the sections in ``settings``; other sections are "none"."""
    if all(section == "none" for section in settings.values()):
        return []
    from data_prep.steps import build_steps  # slow: datatrove's filters

    none = dict.fromkeys(DocumentSteps.model_fields, "none")
    steps = DocumentSteps.model_validate({**none, **settings})
    return build_steps(steps, source=source, where="data.preparation")


def why_removed(
    document: Work, steps: "Sequence[DocumentStep]", *, longest_bytes: int | str
) -> str | None:
    """Apply the steps until one gives a reason to remove; an empty document is removed too."""
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


def finish_document(
    source: str, item: Document, document: Work, why: str | None, tally: DocumentTally
) -> Document | None:
    """Count ``item`` as removed if ``why`` is set; else return the cleaned document."""
    language = str(document.metadata.get("language", UNKNOWN))
    if why is not None:
        tally.count_removed(source, language, item.text, why)
        return None
    sizes = len(item.text.encode()), len(document.text.encode())
    tally.count_document(source, language, *sizes, document.metadata["personal_data"])
    cleaned = Document(document.text, item.group_name, language)
    tally.hash_group(source, group_hash(cleaned))
    return cleaned


def clean_task(
    task: StageTask, settings: Mapping[str, Any], stem: Path, tally: DocumentTally
) -> list[Path]:
    """Clean one task's documents; write a shard and ``[documents, 16]`` bytes of hashes."""
    name, read = task.source, settings["read"]
    steps = build_stage_steps(settings["steps"], name)
    source = Source.model_validate(settings["sources"][name])
    shard, hashes = stem.with_suffix(SUFFIX), stem.with_suffix(HASHES)
    digests = bytearray()
    with write_shard(shard) as add:
        for item in chain.from_iterable(
            read_piece(name, source, piece) for piece in task.pieces
        ):
            if isinstance(item, RecipeError):
                if read["invalid"] == "refuse":
                    alternative = (
                        "or set data.preparation.read.invalid=remove to remove and count it"
                    )
                    raise RecipeError(item.path, item.problem, f"{item.remedy}; {alternative}")
                tally.count_removed(name, UNKNOWN, "", f"invalid: {item.problem}")
                continue
            metadata = {**item.metadata, "personal_data": {}}
            metadata.pop("language", None)  # only the language step may set it
            document = Work(text=item.text, id="", metadata=metadata)
            reason = why_removed(document, steps, longest_bytes=read["longest_bytes"])
            if cleaned := finish_document(name, item, document, reason, tally):
                add(cleaned)
                digests += hashlib.blake2b(
                    cleaned.text.encode(), digest_size=HASH_BYTES
                ).digest()
    write_array(hashes, np.frombuffer(digests, np.uint8).reshape(-1, HASH_BYTES))
    return [shard, hashes]


def read_piece(
    name: str, source: Source, piece: InputPiece
) -> Iterator[Document | RecipeError]:
    """Read a piece, and check before and after reading that it is what was hashed."""
    where = f"data.sources.{name}"
    if piece.path is None:
        inputs = find_inputs(name, source.model_copy(update={"files": ()}))
        text_input = next(
            candidate for candidate in inputs if candidate.hash_input().name == piece.name
        )
        if text_input.hash_input().sha256 != piece.sha256:
            raise RecipeError(where, f"{piece.name} was changed after it was hashed", CHANGED)
        yield from text_input.iter_items()
        return
    state = _state(piece.file_path)
    piece.check_unchanged(where, CHANGED)
    (file,) = open_files((piece.path,), f"{where}.files", source.column)
    yield from replace(file, name=piece.name, start=piece.start, end=piece.end).iter_items()
    if _state(piece.file_path) != state:
        raise RecipeError(where, f"{piece.path} was changed while it was read", CHANGED)


def _state(path: Path) -> tuple[int, int] | None:
    """Return a file's size and time, which change with its content; None if it is missing."""
    if not path.exists():
        return None
    state = path.stat()
    return state.st_size, state.st_mtime_ns
