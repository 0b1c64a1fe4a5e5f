"""A task file is data: what would import, fetch or unpickle is refused, with its line."""

from pathlib import Path

import pytest

from command.evaluate.request import TaskRequest, find_tasks
from components.errors import RecipeError

PLAIN = """\
task: animals
dataset_path: json
dataset_kwargs: {data_files: {test: [animals.jsonl]}}
test_split: test
output_type: multiple_choice
doc_to_text: "The {{ animal }} says"
doc_to_choice: [woof, meow]
doc_to_target: sound
"""


def write(folder: Path, text: str) -> Path:
    (folder / "animals.yaml").write_text(text)
    (folder / "animals.jsonl").write_text('{"animal": "dog", "sound": 0}\n')
    return folder


def test_a_task_becomes_a_mapping_with_its_files_found_beside_it(tmp_path: Path) -> None:
    (task,) = find_tasks(["animals"], write(tmp_path, PLAIN))
    assert task.config is not None
    data = str(tmp_path / "animals.jsonl")
    assert task.config["dataset_kwargs"] == {"data_files": {"test": [data]}}
    assert task.files == (tmp_path / "animals.yaml", Path(data))


def test_a_name_that_is_no_file_is_left_to_lm_eval(tmp_path: Path) -> None:
    (task,) = find_tasks(["arc_easy"], write(tmp_path, PLAIN))
    assert (task.name, task.config) == ("arc_easy", None)
    assert {"animals", "mula9"} <= {*task.known}


def test_a_file_named_as_a_list_is_the_task_that_is_meant(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    (tmp_path / "animals.yaml").rename(tmp_path / "mula9.yaml")
    (tmp_path / "mula9.yaml").write_text(PLAIN.replace("task: animals", "task: mula9"))
    asked = TaskRequest(tasks=("mula9",), tasks_folder=tmp_path, staged=tmp_path).find()
    assert [one.name for one in asked.tasks] == ["mula9"]
    assert not asked.lists


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("doc_to_target: sound", "doc_to_target: !function x.y", "yaml:8: .*tag !function"),
        ("test_split: test", "class: evil.Task", "yaml:4: class: .* not taken"),
        ("test_split: test", "include: ../base.yaml", "yaml:4: include: .* not taken"),
        ("test_split: test", "process_docs: x", "yaml:4: process_docs: .* not taken"),
        ("test_split: test", "unsafe_code: true", "yaml:4: unsafe_code: .* not taken"),
        ("dataset_path: json", "dataset_path: pandas", "yaml:2: dataset_path: 'pandas'"),
        ("dataset_path: json", "dataset_path: a/b", r"yaml:2: .*local files\n.*json, csv"),
        ("[animals.jsonl]", "https://h/x.jsonl", "yaml:3: .*test: there is no file"),
        ("[animals.jsonl]", "/etc/passwd", "yaml:3: .*test: '/etc/passwd' leads out of the"),
        ("[animals.jsonl]", "linked", "yaml:3: .*test: 'linked' leads out of the folder"),
        ("{data_files: {test: [animals.jsonl]}}", "{data_dir: x}", "yaml:3: .*no files by"),
        ("}}", "}, trust_remote_code: true}", "yaml:3: dataset_kwargs: .*or more than that"),
        ("task: animals", "task: birds", "yaml:1: task: 'birds', in the file of 'animals'"),
        ("task: animals", "group: animals", "yaml:1: group: .* not taken"),
    ],
)
def test_what_is_more_than_data_is_refused(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, PLAIN.replace(old, new, 1))
    (folder / "linked").symlink_to("/etc/passwd")
    with pytest.raises(RecipeError, match=message):
        find_tasks(["animals"], folder)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"tasks_folder: .* is no folder"):
        find_tasks(["animals"], tmp_path / "none")
