"""Records of finished work: of one task, and of a pass when all its tasks are done.

A task's record is written last: a task without one was not done, whatever else lies there.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from components.data.files import FileRecord, record_file, replace_atomically
from components.errors import RecipeError
from data_prep.stages.tally import DocumentTally, merge_tallies, tally_of

MANIFEST = "manifest.json"


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


def stem_of(folder: Path, task: int) -> Path:
    """Name the files of a task, up to their suffix."""
    return folder / f"{task:06d}"


def write_record(
    folder: Path, task: int, key: str, files: Sequence[Path], tally: DocumentTally
) -> None:
    """Declare a task done: its files are on disk."""
    tally.check()
    record = TaskRecord(key=key, outputs=tuple(map(record_file, files)), tally=tally)
    _write(_file(folder, task), asdict(record))


def read_record(folder: Path, task: int, key: str) -> TaskRecord | None:
    """Read the record of a task; nothing unless its files are there, of the recorded sizes."""
    tree = _read(_file(folder, task))
    if tree is None or tree["key"] != key:
        return None
    outputs = tuple(FileRecord(**output) for output in tree["outputs"])
    if any(_size(folder / output.name) != output.bytes for output in outputs):
        return None
    return TaskRecord(key=key, outputs=outputs, tally=tally_of(tree["tally"]))


def missing_tasks(folder: Path, tasks: Sequence[int], key: str) -> list[int]:
    """List the tasks that are still to be done."""
    return [task for task in tasks if read_record(folder, task, key) is None]


def write_manifest(folder: Path, key: str, num_tasks: int) -> PassManifest:
    """Sum the records of a pass whose tasks are all done."""
    records = [read_record(folder, task, key) for task in range(num_tasks)]
    done = [record for record in records if record is not None]
    assert len(done) == num_tasks, "a manifest of an unfinished pass"
    tally = merge_tallies(record.tally for record in done)
    tally.check()
    outputs = tuple(record.outputs for record in done)
    manifest = PassManifest(key=key, outputs=outputs, tally=tally)
    _write(folder / MANIFEST, asdict(manifest))
    return manifest


def read_manifest(folder: Path, key: str) -> PassManifest | None:
    """Read the manifest of a pass; nothing if it is not finished."""
    tree = _read(folder / MANIFEST)
    if tree is None or tree["key"] != key:
        return None
    outputs = tuple(
        tuple(FileRecord(**output) for output in outputs) for outputs in tree["outputs"]
    )
    return PassManifest(key=key, outputs=outputs, tally=tally_of(tree["tally"]))


def write_failure(folder: Path, task: int, error: RecipeError) -> None:
    """Leave what stopped a task for the command that waits for it elsewhere."""
    tree = {"path": error.path, "problem": error.problem, "remedy": error.remedy}
    _write(_failure(folder, task), tree)


def take_failure(folder: Path, task: int) -> RecipeError | None:
    """Read what stopped a task, and forget it: the next try may go well."""
    tree = _read(_failure(folder, task))
    _failure(folder, task).unlink(missing_ok=True)
    return None if tree is None else RecipeError(**tree)


def _file(folder: Path, task: int) -> Path:
    return stem_of(folder, task).with_suffix(".json")


def _failure(folder: Path, task: int) -> Path:
    return stem_of(folder, task).with_suffix(".failed.json")


def _write(path: Path, tree: object) -> None:
    with replace_atomically(path) as file:
        file.write((json.dumps(tree, indent=1, ensure_ascii=False) + "\n").encode())


def _read(path: Path) -> dict[str, Any] | None:
    """Read JSON; what is missing or damaged was not done."""
    try:
        tree: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return tree


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
