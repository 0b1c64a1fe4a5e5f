"""The stage's own record: each file with its hash, written last.

``SHA256SUMS`` is the same for ``sha256sum --check``, which is everywhere.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from components.data.files import FileRecord, record_file, replace_atomically
from components.errors import RecipeError

RECORD, SUMS = "stage.json", "SHA256SUMS"
MARK = ".stage"  # in a folder that was begun


def open_stage(folder: Path) -> None:
    """Make the folder, or go on with one; its record is gone until it is whole again.

    Raises:
        RecipeError: something else is there, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted(one.name for one in folder.iterdir())
        if others and MARK not in others:
            problem = f"{folder} holds {others[0]} and is no stage"
            raise RecipeError("file", problem, "name an empty or a new folder")
        (folder / MARK).touch()
        for record in (RECORD, SUMS):
            (folder / record).unlink(missing_ok=True)
    except OSError as error:
        raise RecipeError("file", f"cannot write {folder}: {error}", "name another") from None


def copy_tree(source: Path, target: Path) -> None:
    """Copy what ``target`` does not have yet; on one file system nothing is written twice."""
    for file in sorted(source.rglob("*")):
        place = target / file.relative_to(source)
        if file.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif not place.exists() or place.stat().st_size != file.stat().st_size:
            place.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(file, place)


def _link_or_copy(file: Path, place: Path) -> None:
    partial = place.with_name(f".{place.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(file, partial)
    except OSError:  # another file system
        shutil.copyfile(file, partial)
    partial.replace(place)


def close_stage(folder: Path, facts: Mapping[str, Any]) -> list[FileRecord]:
    """Hash every file and write both records."""
    files = sorted(
        one
        for one in folder.rglob("*")
        if one.is_file() and not one.relative_to(folder).parts[0].startswith(".")
    )
    records = [_record(folder, file) for file in files]
    sums = "".join(f"{one.sha256}  {one.name}\n" for one in records)
    with replace_atomically(folder / SUMS) as stream:
        stream.write(sums.encode())
    tree = {**facts, "files": [asdict(one) for one in records]}
    with replace_atomically(folder / RECORD) as stream:
        stream.write((json.dumps(tree, indent=1) + "\n").encode())
    return records


def _record(folder: Path, file: Path) -> FileRecord:
    found = record_file(file)
    return FileRecord(
        name=file.relative_to(folder).as_posix(), sha256=found.sha256, bytes=found.bytes
    )
