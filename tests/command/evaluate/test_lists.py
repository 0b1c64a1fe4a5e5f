"""Lists of tasks are data: each is read, says of every task whence it is, and what departs."""

from pathlib import Path

import pytest

from command.evaluate import lists
from command.evaluate.lists import list_names, read_list
from components.errors import RecipeError

LIST = """\
name: mine
description: A list of one's own.
harness: 0.4.13
each: {de: {code: DE, question: Frage}, en: {question: Question, config: main}}
words: {config: easy_<code>}
tasks:
  arc:
    asks: {arc_easy: <config>}
    dataset: allenai/ai2_arc
    split: test
    version: 1.0
    num_fewshot: 25
    metric: acc_norm
    doc_to_text: "<question>: {{question}}"
    source: a paper
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of lists with one file, which is all that a new list needs."""
    monkeypatch.setattr(lists, "LISTS", tmp_path)
    (tmp_path / "mine.yaml").write_text(LIST)
    return tmp_path


@pytest.mark.parametrize("name", list_names())
def test_shipped_task_lists_are_valid_and_have_sources(name: str) -> None:
    found = read_list(name)
    assert all(task.source for task in found.tasks.values())
    questions = [(one.lm_eval_task, one.dataset, one.config) for one in found.iter_questions()]
    assert len(questions) == len(set(questions)) >= len(found.tasks)
    names = (
        *(one.dataset for one in found.iter_questions()),
        *(config for *_, config in questions),
    )
    assert not any("<" in text.replace("<config>", "") for text in names)


def test_mula_has_nine_tasks_and_eu21_five() -> None:
    assert [*read_list("mula9").tasks] == [
        "arc_easy", "arc_challenge", "hellaswag", "piqa", "boolq", "sciq", "winogrande",
        "openbookqa", "mmlu",
    ]  # fmt: skip
    eu21 = read_list("eu21")
    assert [*eu21.tasks] == ["arc", "hellaswag", "truthfulqa", "mmlu", "gsm8k"]
    assert len(eu21.each) == 21


def test_a_new_list_is_one_new_file(mine: Path) -> None:
    assert list_names() == ["mine"]
    german, english = read_list("mine").iter_questions()
    assert (german.part, german.config) == ("arc_easy-de", "easy_DE")
    assert german.templates == {"doc_to_text": "Frage: {{question}}"}
    assert (english.part, english.config) == ("arc_easy-en", "main")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: mine", "name: yours", r"mine.yaml:1: name: 'yours' differs from the file"),
        ("    source: a paper\n", "", r"mine.yaml:7: tasks.arc.source: missing"),
        ("metric:", "metrics:", r"mine.yaml:13: tasks.arc.metrics: unknown key"),
        ("version: 1.0", "version: !function x.y", r"mine.yaml:11: .*tag !function"),
        ("num_fewshot: 25", "num_fewshot: -1", r"mine.yaml:12: tasks.arc.num_fewshot"),
    ],
)
def test_wrong_list_names_its_line(old: str, new: str, message: str, mine: Path) -> None:
    (mine / "mine.yaml").write_text(LIST.replace(old, new, 1))
    with pytest.raises(RecipeError, match=message):
        read_list("mine")
