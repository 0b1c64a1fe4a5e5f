"""What a pass does, as data: its settings, its tasks of about the same size, the hash of all.

The plan lies in the pass's folder as JSON; tasks on whatever machine read it from there. The
tasks depend on the inputs and ``shard_bytes`` alone, never on who works.
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

from components.data.files import FileRecord, HashFile, hash_file, replace_atomically
from components.errors import RecipeError
from data_prep.read import Input, LocalFile, kind_of
from data_prep.sources import OpenSource

FILE_NAME = "plan.json"
LISTS = ("stop_words", "flagged_words")
CUTTABLE = (".txt", ".jsonl")
BROKEN = "delete its folder and run the same command again"

# Each pass: the version of its results, and the function that does one of its tasks. A version
# counts changes of all code that decides results: the steps, near_duplicates, the tokenizers.
PASSES = {
    "clean": (3, "data_prep.stages.clean:clean_task"),
    "signatures": (2, "data_prep.stages.duplicates:sign_task"),
    "duplicates": (2, "data_prep.stages.duplicates:find_task"),
    "keep": (2, "data_prep.stages.duplicates:keep_task"),
    "tokenizer": (1, "data_prep.stages.tokens:train_task"),
    "tokens": (1, "data_prep.stages.tokens:encode_task"),
}


@dataclass(frozen=True, kw_only=True)
class InputPiece:
    """A file, a byte range of it, or without a path an embedded corpus or a dataset."""

    name: str
    path: str | None
    sha256: str
    bytes: int
    start: int
    end: int | None

    @property
    def file(self) -> Path:
        assert self.path is not None, "not a file"
        return Path(self.path)

    def check(self, where: str, remedy: str) -> None:
        """Hold the file to what was hashed when the plan was made.

        Raises:
            RecipeError: it is gone or changed.
        """
        try:
            found = hash_file(self.file, self.start, self.end)
        except FileNotFoundError as error:
            problem = f"{self.path} has vanished since it was hashed"
            raise RecipeError(where, problem, remedy) from error
        if found != self.sha256:
            raise RecipeError(where, f"{self.path} has changed since it was hashed", remedy)


@dataclass(frozen=True, kw_only=True)
class PassTask:
    """What one process works through at a time, in this order."""

    source: str
    pieces: tuple[InputPiece, ...]

    def checked_files(self, where: str) -> list[Path]:
        """Check each piece, the output of an earlier pass, and list the files.

        Raises:
            RecipeError: a file is gone or changed.
        """
        for piece in self.pieces:
            piece.check(where, BROKEN)
        return [piece.file for piece in self.pieces]


@dataclass(frozen=True, kw_only=True)
class PassPlan:
    """One pass over the corpus; ``work`` is one of :data:`PASSES`."""

    work: str
    version: int
    settings: Mapping[str, Any]
    tasks: tuple[PassTask, ...]

    @property
    def key(self) -> str:
        """Hash it; where the inputs lie makes no difference, what is in them does."""
        tree = {**vars(self)}
        tree["tasks"] = [
            [task.source]
            + [(one.sha256, kind_of(one.name), one.start, one.end) for one in task.pieces]
            for task in self.tasks
        ]
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()

    @property
    def folder_name(self) -> str:
        return f"{self.work}-{self.key[:12]}"

    def write(self, folder: Path) -> None:
        with replace_atomically(folder / FILE_NAME) as file:
            file.write(json.dumps(asdict(self), indent=1, ensure_ascii=False).encode())


def read_plan(folder: Path) -> PassPlan:
    """Read what :meth:`PassPlan.write` wrote."""
    tree = json.loads((folder / FILE_NAME).read_bytes())
    return TypeAdapter(PassPlan).validate_python(tree)


def pin_lists(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``steps`` with absolute paths of the word lists, and the lists' hashes."""
    pinned, hashes = copy.deepcopy(dict(steps)), {}
    filters = pinned["filters"]
    ratios: Any = filters["text_ratios"] if isinstance(filters, dict) else "none"
    for name in LISTS if isinstance(ratios, dict) else ():
        path = Path(ratios[name])
        if path.is_file():  # what is missing is refused by the step itself
            ratios[name] = str(path.absolute())
            hashes[name] = hash_file(path)
    return {"steps": pinned, "lists": hashes}


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


def whole(path: Path | None, record: FileRecord) -> InputPiece:
    """Take an input as one piece."""
    place = None if path is None else str(path.absolute())
    return InputPiece(**asdict(record), path=place, start=0, end=None)


def _pieces(
    text_input: Input, record: FileRecord, shard_bytes: int, hashed: HashFile
) -> Iterator[InputPiece]:
    path = text_input.path if isinstance(text_input, LocalFile) else None
    one = whole(path, record)
    if path is None or kind_of(path.name) not in CUTTABLE or record.bytes <= shard_bytes:
        yield one
        return
    for start, end in pairwise([0, *_cuts(path, record.bytes, shard_bytes), record.bytes]):
        sha256 = hashed(path, start, end)
        yield replace(one, sha256=sha256, bytes=end - start, start=start, end=end)


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
