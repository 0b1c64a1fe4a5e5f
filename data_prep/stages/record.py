"""Records of finished work: one per task, and a manifest per stage when all tasks are done.

A task's record is written last; a task without a record is not done. Every document is counted
once, by source and language: documents in equal documents out plus removed ones (asserted).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from components.data.files import FileRecord, record_file, write_atomically
from components.errors import RecipeError

MANIFEST = "manifest.json"
MOST_EXAMPLES = 3  # for each reason
EXAMPLE_CHARACTERS = 200

RecordType = TypeVar("RecordType")
CountsByName = dict[str, int]


@dataclass
class Count:
    """Documents, bytes of UTF-8 text, removed documents by reason, replaced places by kind."""

    documents_in: int = 0
    documents_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    removed: CountsByName = field(default_factory=dict)
    replaced: CountsByName = field(default_factory=dict)

    def add_counts(self, other: "Count") -> None:
        for name in ("documents_in", "documents_out", "bytes_in", "bytes_out"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in (self.removed, other.removed), (self.replaced, other.replaced):
            for name, number in theirs.items():
                mine[name] = mine.get(name, 0) + number


@dataclass
class DocumentTally:
    """Counts by source and language, and the first few documents that each reason removed.

    ``groups`` has the lowest and highest group hash of a source, if the stage recorded them.
    """

    counts: dict[str, dict[str, Count]] = field(default_factory=dict)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count_document(
        self, source: str, language: str, bytes_in: int, bytes_out: int, replaced: CountsByName
    ) -> None:
        """Count a kept document and the places replaced in it."""
        self._of(source, language).add_counts(Count(1, 1, bytes_in, bytes_out, {}, replaced))

    def count_removed(self, source: str, language: str, text: str, reason: str) -> None:
        """Count a removed document under the part of ``reason`` before the colon."""
        short = reason.partition(":")[0]
        self._of(source, language).add_counts(Count(1, 0, len(text.encode()), 0, {short: 1}))
        examples = self.examples.setdefault(short, [])
        if len(examples) < MOST_EXAMPLES:
            examples.append({"why": reason, "text": text[:EXAMPLE_CHARACTERS]})

    def hash_group(self, source: str, hashed: int) -> None:
        """Record the group hash of a kept document."""
        lowest, highest = self.groups.get(source, (hashed, hashed))
        self.groups[source] = min(lowest, hashed), max(highest, hashed)

    def add_tally(self, other: "DocumentTally") -> None:
        """Add the tally of a later task."""
        for source, languages in other.counts.items():
            for language, count in languages.items():
                self._of(source, language).add_counts(count)
        for reason, examples in other.examples.items():
            mine = self.examples.setdefault(reason, [])
            mine += examples[: MOST_EXAMPLES - len(mine)]
        for source, ends in other.groups.items():
            for hashed in ends:
                self.hash_group(source, hashed)

    def of_source(self, source: str) -> Count:
        """Return a source's counts, summed over languages."""
        total = Count()
        for count in self.counts.get(source, {}).values():
            total.add_counts(count)
        return total

    def check_totals(self) -> None:
        """Assert that no document is lost or counted twice."""
        for source, languages in self.counts.items():
            for language, count in languages.items():
                accounted = count.documents_out + sum(count.removed.values())
                lost = f"{source}, {language}: in is not out + removed"
                assert count.documents_in == accounted, lost

    def _of(self, source: str, language: str) -> Count:
        return self.counts.setdefault(source, {}).setdefault(language, Count())


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """The files of one task with their hashes, and its tally."""

    key: str
    outputs: tuple[FileRecord, ...]
    tally: DocumentTally


@dataclass(frozen=True, kw_only=True)
class StageManifest:
    """The files of each task of a finished stage, and the sum of the tallies."""

    key: str
    outputs: tuple[tuple[FileRecord, ...], ...]
    tally: DocumentTally


TASK_RECORD, STAGE_MANIFEST = TypeAdapter(TaskRecord), TypeAdapter(StageManifest)
FAILURE = TypeAdapter(dict[str, str])


def stem_of(folder: Path, task: int) -> Path:
    """Return the path of a task's files without suffix."""
    return folder / f"{task:06d}"


def write_record(
    folder: Path, task: int, key: str, files: Sequence[Path], tally: DocumentTally
) -> None:
    """Write the record of a task after its files, which marks it as done."""
    tally.check_totals()
    record = TaskRecord(key=key, outputs=tuple(map(record_file, files)), tally=tally)
    _write(stem_of(folder, task).with_suffix(".json"), asdict(record))


def read_record(folder: Path, task: int, key: str) -> TaskRecord | None:
    """Read a task's record; return None unless its files exist with the recorded sizes."""
    record = _read(TASK_RECORD, stem_of(folder, task).with_suffix(".json"))
    if record is None or record.key != key:
        return None
    files = [folder / output.name for output in record.outputs]
    sizes = [file.stat().st_size if file.is_file() else -1 for file in files]
    return record if sizes == [output.bytes for output in record.outputs] else None


def missing_tasks(folder: Path, tasks: Sequence[int], key: str) -> list[int]:
    """Return the tasks that are not done."""
    return [task for task in tasks if read_record(folder, task, key) is None]


def write_manifest(folder: Path, key: str, num_tasks: int) -> StageManifest:
    """Write the manifest of a finished stage from the records of its tasks."""
    records = (read_record(folder, task, key) for task in range(num_tasks))
    done = [record for record in records if record is not None]
    assert len(done) == num_tasks, "a manifest of an unfinished stage"
    tally = DocumentTally()
    for record in done:
        tally.add_tally(record.tally)
    tally.check_totals()
    outputs = tuple(record.outputs for record in done)
    manifest = StageManifest(key=key, outputs=outputs, tally=tally)
    _write(folder / MANIFEST, asdict(manifest))
    return manifest


def read_manifest(folder: Path, key: str) -> StageManifest | None:
    """Read the manifest of a stage; return None if the stage is not finished."""
    manifest = _read(STAGE_MANIFEST, folder / MANIFEST)
    return None if manifest is None or manifest.key != key else manifest


def write_failure(folder: Path, task: int, error: RecipeError) -> None:
    """Write the error that stopped a task, for a command that waits in another process."""
    tree = {"path": error.path, "problem": error.problem, "remedy": error.remedy}
    _write(_failure(folder, task), tree)


def take_failure(folder: Path, task: int) -> RecipeError | None:
    """Read and delete the error that stopped a task, because the next try may succeed."""
    tree = _read(FAILURE, _failure(folder, task))
    _failure(folder, task).unlink(missing_ok=True)
    return None if tree is None else RecipeError(**tree)


def _failure(folder: Path, task: int) -> Path:
    return stem_of(folder, task).with_suffix(".failed.json")


def _write(path: Path, tree: object) -> None:
    write_atomically(path, json.dumps(tree, indent=1, ensure_ascii=False) + "\n")


def _read(adapter: TypeAdapter[RecordType], path: Path) -> RecordType | None:
    """Read JSON; return None if it is missing or damaged: then the work is not done."""
    try:
        return adapter.validate_python(json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError):
        return None
