"""Plan of a stage: its settings, its tasks of about equal size, and their hash.

The plan is stored as JSON in the stage's folder, where tasks on any machine read it. The tasks
depend only on the inputs and ``shard_bytes``, not on the workers.
"""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from components.data.files import FileRecord, HashFile, hash_file, write_atomically
from components.errors import RecipeError
from data_prep.read import Input, LocalFile, kind_of
from data_prep.sources import OpenSource

FILE_NAME = "plan.json"
LISTS = ("stop_words", "flagged_words")
CUTTABLE = (".txt", ".jsonl")
BROKEN = "delete its folder and run the same command again"

# For each stage, the version of its results and the function that does one task. Raise the
# version when any code that affects results changes: the steps, near_duplicates, tokenizers.
STAGES = {
    "clean": (3, "data_prep.stages.clean:clean_task"),
    "signatures": (2, "data_prep.stages.duplicates:sign_task"),
    "duplicates": (2, "data_prep.stages.duplicates:find_task"),
    "keep": (2, "data_prep.stages.duplicates:keep_task"),
    "tokenizer": (1, "data_prep.stages.tokens:train_task"),
    "tokens": (1, "data_prep.stages.tokens:encode_task"),
}


@dataclass(frozen=True, kw_only=True)
class InputPiece:
    """A file or a byte range of it; without a path, an embedded corpus or a dataset."""

    name: str
    path: str | None
    sha256: str
    bytes: int
    start: int
    end: int | None

    @property
    def file_path(self) -> Path:
        assert self.path is not None, "not a file"
        return Path(self.path)

    def check_unchanged(self, where: str, remedy: str) -> None:
        """Check that the file still has the content hashed for the plan."""
        try:
            sha256 = hash_file(self.file_path, self.start, self.end)
        except FileNotFoundError as error:
            problem = f"{self.path} was removed after it was hashed"
            raise RecipeError(where, problem, remedy) from error
        if sha256 != self.sha256:
            raise RecipeError(where, f"{self.path} was changed after it was hashed", remedy)


@dataclass(frozen=True, kw_only=True)
class StageTask:
    """The pieces that one process works through, in this order."""

    source: str
    pieces: tuple[InputPiece, ...]

    def checked_files(self, where: str) -> list[Path]:
        """Check each piece, which an earlier stage wrote, and return the files."""
        for piece in self.pieces:
            piece.check_unchanged(where, BROKEN)
        return [piece.file_path for piece in self.pieces]


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One stage over the corpus; ``work`` is a key of :data:`STAGES`."""

    work: str
    version: int
    settings: Mapping[str, Any]
    tasks: tuple[StageTask, ...]

    @property
    def plan_key(self) -> str:
        """Return the hash of the plan. Input content and formats matter, not paths."""
        tree = {**vars(self)}
        tree["tasks"] = [
            [task.source]
            + [
                (piece.sha256, kind_of(piece.name), piece.start, piece.end)
                for piece in task.pieces
            ]
            for task in self.tasks
        ]
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()

    def write_plan(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        write_atomically(folder / FILE_NAME, text)


def read_plan(folder: Path) -> StagePlan:
    """Read what :meth:`StagePlan.write_plan` wrote."""
    tree = json.loads((folder / FILE_NAME).read_bytes())
    return TypeAdapter(StagePlan).validate_python(tree)


def pin_lists(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``steps`` with absolute paths of the word lists, and the hashes of the lists."""
    pinned, hashes = copy.deepcopy(dict(steps)), {}
    filters = pinned["filters"]
    ratios: Any = filters["text_ratios"] if isinstance(filters, dict) else "none"
    for name in LISTS if isinstance(ratios, dict) else ():
        path = Path(ratios[name])
        if path.is_file():  # the step itself rejects a missing file
            ratios[name] = str(path.absolute())
            hashes[name] = hash_file(path)
    return {"steps": pinned, "lists": hashes}


def cut_source(
    name: str, source: OpenSource, shard_bytes: int, hashed: HashFile = hash_file
) -> Iterator[StageTask]:
    """Group whole inputs up to ``shard_bytes``; cut larger plain files into several tasks."""
    group: list[InputPiece] = []
    for text_input, record in zip(source.inputs, source.records, strict=True):
        pieces = list(_pieces(text_input, record, shard_bytes, hashed))
        size = sum(piece.bytes for piece in group)
        if group and size + sum(piece.bytes for piece in pieces) > shard_bytes:
            yield StageTask(source=name, pieces=tuple(group))
            group = []
        for piece in pieces[:-1]:
            yield StageTask(source=name, pieces=(piece,))
        group.append(pieces[-1])
    yield StageTask(source=name, pieces=tuple(group))


def make_whole_piece(path: Path | None, record: FileRecord) -> InputPiece:
    """Return an input as one piece."""
    place = None if path is None else str(path.absolute())
    return InputPiece(**asdict(record), path=place, start=0, end=None)


def _pieces(
    text_input: Input, record: FileRecord, shard_bytes: int, hashed: HashFile
) -> Iterator[InputPiece]:
    path = text_input.path if isinstance(text_input, LocalFile) else None
    piece = make_whole_piece(path, record)
    if path is None or kind_of(path.name) not in CUTTABLE or record.bytes <= shard_bytes:
        yield piece
        return
    for start, end in pairwise([0, *_cuts(path, record.bytes, shard_bytes), record.bytes]):
        sha256 = hashed(path, start, end)
        yield replace(piece, sha256=sha256, bytes=end - start, start=start, end=end)


def _cuts(path: Path, size: int, shard_bytes: int) -> Iterator[int]:
    """Yield the first end of a document at or after each multiple of ``shard_bytes``."""
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
