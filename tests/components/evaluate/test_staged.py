"""Data of a task list is fetched by name and recorded; missing data is refused."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported

import pytest

from components.errors import RecipeError
from components.evaluate.task_list import TaskList

ABSENT = find_spec("lm_eval") is None
pytestmark = pytest.mark.skipif(ABSENT, reason="lm-eval is optional and not installed")
CHOICES = {"text": ["dog"], "label": ["A"]}
ROW = json.dumps({"question": "Who barks?", "choices": CHOICES, "answerKey": "A"})


def listed(dataset: str, *, asked: str = "arc_easy", config: str = "<config>") -> TaskList:
    task = {"asks": {asked: config}, "dataset": dataset, "split": "test", "version": 1.0}
    task |= {"num_fewshot": 0, "metric": "acc", "source": "none"}
    tree = {"name": "mine", "description": "", "harness": "", "each": {}, "words": {}}
    return TaskList.model_validate(tree | {"tasks": {"arc": task}})


@pytest.fixture
def manager() -> Any:
    """Index only lm-eval's tasks of ARC, which is fast."""
    import lm_eval.tasks

    folder = Path(lm_eval.tasks.__file__).with_name("arc")
    return lm_eval.tasks.TaskManager(include_defaults=False, include_path=str(folder))


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    folder = tmp_path / "hub"
    lines = ["---", "configs:", "- config_name: ARC-Easy", "  data_files:"]
    for split in ("train", "validation", "test"):
        lines += [f"  - split: {split}", f"    path: {split}.jsonl"]
        folder.mkdir(exist_ok=True)
        (folder / f"{split}.jsonl").write_text(ROW + "\n")
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return folder


def test_each_split_is_fetched_once_and_recorded(hub: Path, tmp_path: Path, manager) -> None:
    from components.evaluate.task_list import fetch_task_data, open_staged

    lines: list[str] = []
    for _ in range(2):
        place = fetch_task_data(listed(str(hub)), tmp_path / "prepared", manager, lines.append)
        assert place == tmp_path / "prepared" / "tasks-mine"
        assert len(lines) == 1
        (hub / "test.jsonl").unlink(missing_ok=True)  # fetched data is reused
    names = [Path(file).name for file in open_staged(listed(str(hub)), place).names]
    assert names == ["train.parquet", "validation.parquet", "test.parquet"]
    assert len([*place.iterdir()]) == 2  # one data set and the record: no cache is left


def test_the_error_of_a_missing_data_set_has_a_remedy(hub, tmp_path, manager):
    from components.evaluate.task_list import fetch_task_data

    for tasks, message in (
        (listed(str(hub), config="ARC-None"), r"tasks: .*hub, ARC-None: .*\n.*it continues"),
        (listed("nobody/none"), r"tasks: nobody/none: .*\n.*with a network"),
        (listed(str(hub), asked="arc_hard"), "lm-eval has no task 'arc_hard' in this version"),
    ):
        with pytest.raises(RecipeError, match=message):
            fetch_task_data(tasks, tmp_path / "prepared", manager, print)


def test_a_task_reads_only_staged_data(hub: Path, tmp_path: Path, manager: Any) -> None:
    from components.evaluate.task_list import fetch_task_data, open_staged, patch_datasets

    task_list = listed(str(hub))
    place = fetch_task_data(task_list, tmp_path / "prepared", manager, print)
    data = open_staged(task_list, place)
    (question,) = task_list.iter_questions()
    with patch_datasets(question, data, tmp_path):
        built = manager.load(["arc_easy"])["tasks"]["arc_easy"]
        assert built.task_docs[0]["question"] == "Who barks?"
        with pytest.raises(RecipeError, match=r"arc_easy reads .*, but .* does not have it"):
            manager.load(["arc_challenge"])
