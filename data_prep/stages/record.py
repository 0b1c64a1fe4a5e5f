"""Records of finished work: of one task, and of a pass when all its tasks are done.

A task's record is written last: a task without one was not done, whatever else lies there.
Every document is counted once, by source and language: in = out + removed, or it refuses.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from components.data.files import FileRecord, record_file, replace_atomically
from components.errors import RecipeError

MANIFEST = "manifest.json"
MOST_EXAMPLES = 3  # for each reason
EXAMPLE_CHARACTERS = 200

Tree = TypeVar("Tree")
Numbers = dict[str, int]


@dataclass
class Count:
    """Documents, bytes of UTF-8 text, removed documents by reason, replaced places by kind."""

    documents_in: int = 0
    documents_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    removed: Numbers = field(default_factory=dict)
    replaced: Numbers = field(default_factory=dict)

    def add(self, other: "Count") -> None:
        for name in ("documents_in", "documents_out", "bytes_in", "bytes_out"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in (self.removed, other.removed), (self.replaced, other.replaced):
            for name, number in theirs.items():
                mine[name] = mine.get(name, 0) + number


@dataclass
class DocumentTally:
    """Counts by source and language, and the first few documents that each reason removed.

    ``groups`` has the lowest and highest hash of a source's groups, where a pass says them.
    """

    counts: dict[str, dict[str, Count]] = field(default_factory=dict)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)

    def keep(
        self, source: str, language: str, bytes_in: int, bytes_out: int, replaced: Numbers
    ) -> None:
        """Count a document that stays, and what was replaced in it."""
        self._of(source, language).add(Count(1, 1, bytes_in, bytes_out, {}, replaced))

    def remove(self, source: str, language: str, text: str, reason: str) -> None:
        """Count a document that goes, under the part of ``reason`` before the colon."""
        short = reason.partition(":")[0]
        self._of(source, language).add(Count(1, 0, len(text.encode()), 0, {short: 1}))
        examples = self.examples.setdefault(short, [])
        if len(examples) < MOST_EXAMPLES:
            examples.append({"why": reason, "text": text[:EXAMPLE_CHARACTERS]})

    def hash_group(self, source: str, hashed: int) -> None:
        """Take note of the hash of the group of a document that stays."""
        lowest, highest = self.groups.get(source, (hashed, hashed))
        self.groups[source] = min(lowest, hashed), max(highest, hashed)

    def merge(self, other: "DocumentTally") -> None:
        """Add the tally of a task that comes after this one."""
        for source, languages in other.counts.items():
            for language, count in languages.items():
                self._of(source, language).add(count)
        for reason, examples in other.examples.items():
            mine = self.examples.setdefault(reason, [])
            mine += examples[: MOST_EXAMPLES - len(mine)]
        for source, ends in other.groups.items():
            for hashed in ends:
                self.hash_group(source, hashed)

    def of_source(self, source: str) -> Count:
        """Sum over languages."""
        total = Count()
        for count in self.counts.get(source, {}).values():
            total.add(count)
        return total

    def check(self) -> None:
        """Assert that no document is lost and none counted twice."""
        for source, languages in self.counts.items():
            for language, count in languages.items():
                out = count.documents_out + sum(count.removed.values())
                lost = f"{source}, {language}: in is not out + removed"
                assert count.documents_in == out, lost

    def _of(self, source: str, language: str) -> Count:
        return self.counts.setdefault(source, {}).setdefault(language, Count())


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """The files of one task and their hashes, and what was counted."""

    key: str
    outputs: tuple[FileRecord, ...]
    tally: DocumentTally


@dataclass(frozen=True, kw_only=True)
class PassManifest:
    """The files of each task of a finished pass, and the sum of their counts."""

    key: str
    outputs: tuple[tuple[FileRecord, ...], ...]
    tally: DocumentTally


TASK_RECORD, PASS_MANIFEST = TypeAdapter(TaskRecord), TypeAdapter(PassManifest)
FAILURE = TypeAdapter(dict[str, str])


def stem_of(folder: Path, task: int) -> Path:
    """Name the files of a task, up to their suffix."""
    return folder / f"{task:06d}"


def write_record(
    folder: Path, task: int, key: str, files: Sequence[Path], tally: DocumentTally
) -> None:
    """Declare a task done: its files are on disk."""
    tally.check()
    record = TaskRecord(key=key, outputs=tuple(map(record_file, files)), tally=tally)
    _write(stem_of(folder, task).with_suffix(".json"), asdict(record))


def read_record(folder: Path, task: int, key: str) -> TaskRecord | None:
    """Read the record of a task; nothing unless its files are there, of the recorded sizes."""
    record = _read(TASK_RECORD, stem_of(folder, task).with_suffix(".json"))
    if record is None or record.key != key:
        return None
    files = [folder / output.name for output in record.outputs]
    sizes = [file.stat().st_size if file.is_file() else -1 for file in files]
    return record if sizes == [output.bytes for output in record.outputs] else None


def missing_tasks(folder: Path, tasks: Sequence[int], key: str) -> list[int]:
    """List the tasks that are still to be done."""
    return [task for task in tasks if read_record(folder, task, key) is None]


def write_manifest(folder: Path, key: str, num_tasks: int) -> PassManifest:
    """Sum the records of a pass whose tasks are all done."""
    records = (read_record(folder, task, key) for task in range(num_tasks))
    done = [record for record in records if record is not None]
    assert len(done) == num_tasks, "a manifest of an unfinished pass"
    tally = DocumentTally()
    for record in done:
        tally.merge(record.tally)
    tally.check()
    outputs = tuple(record.outputs for record in done)
    manifest = PassManifest(key=key, outputs=outputs, tally=tally)
    _write(folder / MANIFEST, asdict(manifest))
    return manifest


def read_manifest(folder: Path, key: str) -> PassManifest | None:
    """Read the manifest of a pass; nothing if it is not finished."""
    manifest = _read(PASS_MANIFEST, folder / MANIFEST)
    return None if manifest is None or manifest.key != key else manifest


def write_failure(folder: Path, task: int, error: RecipeError) -> None:
    """Leave what stopped a task for the command that waits for it elsewhere."""
    tree = {"path": error.path, "problem": error.problem, "remedy": error.remedy}
    _write(_failure(folder, task), tree)


def take_failure(folder: Path, task: int) -> RecipeError | None:
    """Read what stopped a task, and forget it: the next try may go well."""
    tree = _read(FAILURE, _failure(folder, task))
    _failure(folder, task).unlink(missing_ok=True)
    return None if tree is None else RecipeError(**tree)


def _failure(folder: Path, task: int) -> Path:
    return stem_of(folder, task).with_suffix(".failed.json")


def _write(path: Path, tree: object) -> None:
    with replace_atomically(path) as file:
        file.write((json.dumps(tree, indent=1, ensure_ascii=False) + "\n").encode())


def _read(adapter: TypeAdapter[Tree], path: Path) -> Tree | None:
    """Read JSON; what is missing or damaged was not done."""
    try:
        return adapter.validate_python(json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError):
        return None
