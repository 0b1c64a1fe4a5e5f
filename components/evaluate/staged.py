"""Data sets of a list of tasks: fetched where there is a network, read where there is none.

``tasks-NAME/`` holds ``DATASET/CONFIG/SPLIT.parquet`` and, written last, ``tasks.json`` with
the revision of each data set and the hash of each file.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

from pydantic import Field

from components.data.files import FileRecord, record_file, replace_atomically, verify_file
from components.errors import RecipeError
from components.evaluate.task_list import TaskList, TaskQuestion
from components.evaluate.tasks import first_line
from components.run.records import Natural, RunRecord, read_checked

RECORD = "tasks.json"
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
Say = Callable[[str], None]
Tree = dict[str, Any]


class _File(RunRecord):
    name: str
    sha256: str
    bytes: Natural


class _Record(RunRecord):
    """``tasks.json``: whose data these are, and what they were when they were fetched."""

    reads: str
    files: Annotated[tuple[_File, ...], Field(strict=False)]


@dataclass(frozen=True)
class StagedData:
    """Files of a place, by name relative to it, and the hash of their record."""

    place: Path
    names: tuple[str, ...]
    sha256: str


def place_of(name: str, folder: Path) -> Path:
    """Return where the data of a list lie below ``folder``."""
    return folder / f"tasks-{name}"


def digest(asked: TaskList) -> str:
    """Hash what decides which data a list reads."""
    read = [[one.asked, one.dataset, one.config] for one in asked.questions()]
    return sha256(json.dumps(read).encode()).hexdigest()


def fetch(asked: TaskList, folder: Path, manager: Any, say: Say) -> Path:
    """Fetch each split that the list's tasks name; what is there already stays.

    Raises:
        RecipeError: a data set is not to be had.
    """
    import datasets

    datasets.disable_progress_bars()
    place = place_of(asked.name, folder)
    revisions: dict[str, str | None] = {}
    files: list[FileRecord] = []
    for (path, config), splits in _needed(asked, manager).items():
        target = place / _folder(path) / config
        if path not in revisions:
            revisions[path] = _revision(path)
        missing = [one for one in splits if not (target / f"{one}.parquet").is_file()]
        if missing:
            say(f"{path}, {config}: {', '.join(missing)}")
            target.mkdir(parents=True, exist_ok=True)
            try:
                with tempfile.TemporaryDirectory(dir=place) as aside:
                    found = datasets.load_dataset(
                        path, config, revision=revisions[path], cache_dir=aside
                    )
                    for split in missing:
                        with replace_atomically(target / f"{split}.parquet") as file:
                            found[split].to_parquet(file)
            except (OSError, ValueError, KeyError) as error:
                problem = f"{path}, {config}: {first_line(error)}"
                remedy = "stage where there is a network; the same command again goes on"
                raise RecipeError("tasks", problem, remedy) from None
        for split in splits:
            name = (target / f"{split}.parquet").relative_to(place).as_posix()
            files.append(replace(record_file(place / name), name=name))
    tree = {
        "format": 1,
        "list": asked.name,
        "reads": digest(asked),
        "revisions": revisions,
        "files": [asdict(one) for one in files],
    }
    with replace_atomically(place / RECORD) as file:
        file.write(json.dumps(tree, indent=1).encode())
    return place


def open_staged(asked: TaskList, place: Path) -> StagedData:
    """Hold the data of a list against their record, every byte.

    Raises:
        RecipeError: they are not there, are those of another list, or a file was changed.
    """
    way = (
        "where there is a network: python run.py action=prepare stage=true "
        f"tasks={asked.name} recipe=..., or without stage=true; "
        f"tasks_folder=FOLDER says where tasks-{asked.name} lies"
    )
    if not (place / RECORD).is_file():
        problem = f"the data of {asked.name} are not staged: there is no {place / RECORD}"
        raise RecipeError("tasks", problem, way)
    kept = _Record(**read_checked(place / RECORD, _Record, remedy=way))
    if kept.reads != digest(asked):
        problem = f"{place} was staged for another {asked.name} than that of this clone"
        raise RecipeError("tasks", problem, way)
    for one in kept.files:
        try:
            verify_file(place, FileRecord(**one.model_dump()), contents=True)
        except RecipeError as error:
            raise RecipeError(
                error.path, error.problem, f"delete it and stage again {way}"
            ) from None
    return StagedData(
        place, tuple(one.name for one in kept.files), record_file(place / RECORD).sha256
    )


@contextlib.contextmanager
def reading(question: TaskQuestion, data: StagedData, aside: Path) -> Iterator[None]:
    """Let ``datasets`` open staged files alone, whatever a task of lm-eval asks it for."""
    import datasets

    load = datasets.load_dataset

    def staged(path: str, name: str | None = None, **_: object) -> Any:
        above = f"{_folder(question.dataset)}/{question.config_of(name)}"
        names = (Path(one) for one in data.names if one.rpartition("/")[0] == above)
        files = {one.stem: str(data.place / one) for one in names}
        if not files:
            problem = f"{question.asked} reads {path}, of which nothing is in {data.place}"
            raise RecipeError("tasks", problem, f"delete {data.place} and stage again")
        return load("parquet", data_files=files, cache_dir=str(aside))

    with patch.object(datasets, "load_dataset", staged):
        yield


def _needed(asked: TaskList, manager: Any) -> dict[tuple[str, str], list[str]]:
    """Name the splits of each data set and configuration that the tasks of a list read."""
    needed: dict[tuple[str, str], dict[str, None]] = {}
    for question in asked.questions():
        for own in leaves(question.asked, manager.task_index):
            key = (question.dataset, question.config_of(own.get("dataset_name")))
            named = (own.get(split) for split in _SPLITS)
            needed.setdefault(key, {}).update(dict.fromkeys(filter(None, named)))
    return {key: [*splits] for key, splits in needed.items()}


def leaves(name: str, index: Any) -> Iterator[Tree]:
    """Give the configuration of each task that a task, group or tag of lm-eval stands for.

    Raises:
        RecipeError: lm-eval has none of that name.
    """
    if name not in index:
        problem = f"lm-eval has no task {name!r} in this version"
        raise RecipeError("tasks", problem, "install requirements/evaluate.lock")
    entry = index[name]
    members = sorted(entry.tags) if entry.cfg is None else entry.cfg.get("task")
    if isinstance(members, str):
        yield entry.cfg
        return
    for one in members:
        yield from leaves(one, index)


def _folder(path: str) -> str:
    return path.strip("/").replace("/", "__")


def _revision(path: str) -> str | None:
    """Ask the hub which commit of a data set is its newest; a folder has none."""
    if Path(path).is_dir():
        return None
    from httpx2 import HTTPError  # what the hub's own client raises where no host is found
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        return HfApi().dataset_info(path).sha
    except (HTTPError, OfflineModeIsEnabled, OSError) as error:
        problem = f"{path}: {first_line(error)}"
        remedy = "stage where there is a network; the same command again goes on"
        raise RecipeError("tasks", problem, remedy) from None
