"""Task list: a paper's named set of lm-eval tasks, with their settings and data sets.

``task_lists/NAME.yaml`` is data and refers to lm-eval's tasks by name. A list of several
languages defines words per language in ``each``; the value of a word replaces ``<word>``.

`fetch_task_data` downloads the data sets on a machine with a network. It writes
``tasks-NAME/DATASET/CONFIG/SPLIT.parquet`` and last ``tasks.json``, which contains the revision
of each data set and the hash of each file.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

from pydantic import Field

from components.config.schema.types import FrozenMapping, Section
from components.data.files import (
    FileRecord,
    record_file,
    replace_atomically,
    verify_file,
    write_atomically,
)
from components.errors import RecipeError, first_line
from components.run.records import Natural, RunRecord, read_checked

OWN_CONFIG = "<config>"  # placeholder for the dataset_name of the lm-eval task
RECORD = "tasks.json"
STAGE_ONLINE = "run the same command on a machine with a network: it continues"
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
Say = Callable[[str], None]
ResultTree = dict[str, Any]
TextMapping = FrozenMapping[str]


class ListedTask(Section):
    """A task with one score: the mean over the lm-eval tasks in ``asks`` and the languages.

    ``asks`` maps an lm-eval task or group to the configuration of ``dataset`` that it reads;
    ``<config>`` is the configuration that lm-eval's task names. ``metric`` scores ``split``;
    lm-eval's ``acc_norm`` divides a choice's log-likelihood by its characters. ``doc_to_text``
    and ``doc_to_choice`` replace lm-eval's templates. ``departs`` describes how the question
    differs from the source's question. ``in_mean=False`` excludes the task from the list's
    mean, as the source does.
    """

    asks: TextMapping
    dataset: str
    split: str
    version: float | str
    num_fewshot: Annotated[int, Field(ge=0)]
    metric: str
    source: str
    doc_to_text: str = ""
    doc_to_choice: str = ""
    departs: str = ""
    in_mean: bool = True


class TaskList(Section):
    """A task list; ``harness`` is the lm-eval version that has its task names."""

    name: str
    description: str
    harness: str
    each: FrozenMapping[TextMapping]  # by language
    words: TextMapping  # defaults for every language
    tasks: FrozenMapping[ListedTask]

    def iter_questions(self) -> Iterator["TaskQuestion"]:
        """Yield a question for each lm-eval task and language."""
        for name, task in self.tasks.items():
            for language, own in (self.each or {"": {}}).items():
                words = {**self.words, **own}
                templates = {
                    "doc_to_text": _filled(task.doc_to_text, words),
                    "doc_to_choice": _filled(task.doc_to_choice, words),
                }
                for task_name, config in task.asks.items():
                    yield TaskQuestion(
                        task=name,
                        part="-".join(filter(None, (task_name, language))),
                        lm_eval_task=task_name,
                        dataset=_filled(task.dataset, words),
                        config=_filled(config, words),
                        templates={key: text for key, text in templates.items() if text},
                    )


@dataclass(frozen=True, kw_only=True)
class TaskQuestion:
    """An lm-eval task or group, the data set that it reads, and templates that it replaces."""

    task: str
    part: str
    lm_eval_task: str
    dataset: str
    config: str
    templates: Mapping[str, str]

    def config_of(self, own: str | None) -> str:
        """Return the configuration for an lm-eval task with ``own`` as ``dataset_name``."""
        return self.config.replace(OWN_CONFIG, own or "default")


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(f"<{word}>", value)
    return text


class _File(RunRecord):
    name: str
    sha256: str
    bytes: Natural


class _Record(RunRecord):
    """``tasks.json``: digest of the list, and hash and size of each fetched file."""

    reads: str
    files: Annotated[tuple[_File, ...], Field(strict=False)]


@dataclass(frozen=True)
class StagedData:
    """Staged files by name relative to ``place``, and the SHA-256 of ``tasks.json``."""

    place: Path
    names: tuple[str, ...]
    sha256: str


def place_of(name: str, folder: Path) -> Path:
    """Return the data folder of a task list, below ``folder``."""
    return folder / f"tasks-{name}"


def hash_task_list(task_list: TaskList) -> str:
    """Hash the tasks, data sets and configurations that a list reads."""
    read = [
        [question.lm_eval_task, question.dataset, question.config]
        for question in task_list.iter_questions()
    ]
    return sha256(json.dumps(read).encode()).hexdigest()


def fetch_task_data(task_list: TaskList, folder: Path, manager: Any, say: Say) -> Path:
    """Fetch the splits that the list's tasks read and skip the files that exist."""
    import datasets

    datasets.disable_progress_bars()
    place = place_of(task_list.name, folder)
    revisions: dict[str, str | None] = {}
    files: list[FileRecord] = []
    for (path, config), splits in _needed(task_list, manager).items():
        target = place / _folder(path) / config
        if path not in revisions:
            revisions[path] = _revision(path)
        missing = [split for split in splits if not (target / f"{split}.parquet").is_file()]
        if missing:
            say(f"{path}, {config}: {', '.join(missing)}")
            target.mkdir(parents=True, exist_ok=True)
            try:
                with tempfile.TemporaryDirectory(dir=place) as aside:
                    dataset = datasets.load_dataset(
                        path, config, revision=revisions[path], cache_dir=aside
                    )
                    for split in missing:
                        with replace_atomically(target / f"{split}.parquet") as file:
                            dataset[split].to_parquet(file)
            except (OSError, ValueError, KeyError) as error:
                problem = f"{path}, {config}: {first_line(error)}"
                raise RecipeError("tasks", problem, STAGE_ONLINE) from None
        for split in splits:
            name = (target / f"{split}.parquet").relative_to(place).as_posix()
            files.append(replace(record_file(place / name), name=name))
    tree = {
        "format": 1,
        "list": task_list.name,
        "reads": hash_task_list(task_list),
        "revisions": revisions,
        "files": [asdict(file) for file in files],
    }
    write_atomically(place / RECORD, json.dumps(tree, indent=1))
    return place


def open_staged(task_list: TaskList, place: Path) -> StagedData:
    """Verify every byte of a list's staged data against ``tasks.json``; else RecipeError."""
    name = task_list.name
    remedy = (
        "on a machine with a network, run python run.py action=prepare stage=true "
        f"tasks={name} recipe=..., or without stage=true; "
        f"set tasks_folder=FOLDER to the folder of tasks-{name}"
    )
    if not (place / RECORD).is_file():
        problem = f"the data of {name} are not staged: {place / RECORD} does not exist"
        raise RecipeError("tasks", problem, remedy)
    record = _Record(**read_checked(place / RECORD, _Record, remedy=remedy))
    if record.reads != hash_task_list(task_list):
        problem = f"{place} was staged for another version of the list {name}"
        raise RecipeError("tasks", problem, remedy)
    for file in record.files:
        try:
            verify_file(place, FileRecord(**file.model_dump()), contents=True)
        except RecipeError as error:
            remedy = f"delete it and stage again {remedy}"
            raise RecipeError(error.path, error.problem, remedy) from None
    names = tuple(file.name for file in record.files)
    return StagedData(place, names, record_file(place / RECORD).sha256)


@contextlib.contextmanager
def patch_datasets(question: TaskQuestion, data: StagedData, aside: Path) -> Iterator[None]:
    """Patch ``datasets.load_dataset`` to open only the staged files of ``question``."""
    import datasets

    load = datasets.load_dataset

    def load_staged(path: str, name: str | None = None, **_: object) -> Any:
        above = f"{_folder(question.dataset)}/{question.config_of(name)}"
        names = (Path(name) for name in data.names if name.rpartition("/")[0] == above)
        files = {path.stem: str(data.place / path) for path in names}
        if not files:
            problem = f"{question.lm_eval_task} reads {path}, but {data.place} does not have it"
            raise RecipeError("tasks", problem, f"delete {data.place} and stage again")
        return load("parquet", data_files=files, cache_dir=str(aside))

    with patch.object(datasets, "load_dataset", load_staged):
        yield


def _needed(task_list: TaskList, manager: Any) -> dict[tuple[str, str], list[str]]:
    """Return the splits that a list reads, by data set and configuration."""
    needed: dict[tuple[str, str], dict[str, None]] = {}
    for question in task_list.iter_questions():
        for own in iter_task_configs(question.lm_eval_task, manager.task_index):
            key = (question.dataset, question.config_of(own.get("dataset_name")))
            named = (own.get(split) for split in _SPLITS)
            needed.setdefault(key, {}).update(dict.fromkeys(filter(None, named)))
    return {key: [*splits] for key, splits in needed.items()}


def iter_task_configs(name: str, index: Any) -> Iterator[ResultTree]:
    """Yield the configuration of each task in an lm-eval task, group or tag."""
    if name not in index:
        problem = f"lm-eval has no task {name!r} in this version"
        raise RecipeError("tasks", problem, "install requirements/evaluate.lock")
    entry = index[name]
    members = sorted(entry.tags) if entry.cfg is None else entry.cfg.get("task")
    if isinstance(members, str):
        yield entry.cfg
        return
    for member in members:
        yield from iter_task_configs(member, index)


def _folder(path: str) -> str:
    return path.strip("/").replace("/", "__")


def _revision(path: str) -> str | None:
    """Return the newest commit of a data set on the hub; None for a local folder."""
    if Path(path).is_dir():
        return None
    from httpx2 import HTTPError  # huggingface_hub raises it if the host cannot be found
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        return HfApi().dataset_info(path).sha
    except (HTTPError, OfflineModeIsEnabled, OSError) as error:
        raise RecipeError("tasks", f"{path}: {first_line(error)}", STAGE_ONLINE) from None
