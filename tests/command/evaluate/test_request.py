"""A task file is data: what would import, fetch or unpickle is refused, with its line."""

import json
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


def test_task_files_are_found_next_to_their_task(tmp_path: Path) -> None:
    (task,) = find_tasks(["animals"], write(tmp_path, PLAIN))
    assert task.config is not None
    data = str(tmp_path / "animals.jsonl")
    assert task.config["dataset_kwargs"] == {"data_files": {"test": [data]}}
    assert task.files == (tmp_path / "animals.yaml", Path(data))


def test_a_name_without_a_file_is_a_task_of_lm_eval(tmp_path: Path) -> None:
    (task,) = find_tasks(["arc_easy"], write(tmp_path, PLAIN))
    assert (task.name, task.config) == ("arc_easy", None)
    assert {"animals", "mula9"} <= {*task.known}
    with pytest.raises(RecipeError, match=r"tasks_folder: .* is not a folder"):
        find_tasks(["animals"], tmp_path / "none")


def test_a_task_file_precedes_a_list_of_the_same_name(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    (tmp_path / "animals.yaml").rename(tmp_path / "mula9.yaml")
    (tmp_path / "mula9.yaml").write_text(PLAIN.replace("task: animals", "task: mula9"))
    folders = {"tasks_folder": tmp_path, "staged": tmp_path, "folder": tmp_path}
    request = TaskRequest(tasks=("mula9",), compute=None, most_rows=1, **folders)
    tasks, lists = request.load_requested()
    assert [task.name for task in tasks] == ["mula9"]
    assert not lists


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("doc_to_target: sound", "doc_to_target: !function x.y", "yaml:8: .*tag !function"),
        ("test_split: test", "process_docs: x", "yaml:4: process_docs: unknown key in"),
        ("dataset_path: json", "dataset_path: pandas", "yaml:2: dataset_path: .*'pandas'"),
        ("dataset_path: json", "dataset_path: a/b", r"yaml:2: .*\n.*csv, json"),
        ("[animals.jsonl]", "https://h/x.jsonl", "yaml:3: .*test: .* does not exist"),
        ("[animals.jsonl]", "/etc/passwd", "yaml:3: .*test: '/etc/passwd' is outside the"),
        ("[animals.jsonl]", "linked", "yaml:3: .*test: 'linked' is outside the folder"),
        ("{data_files: {test: [animals.jsonl]}}", "{data_dir: x}", "yaml:3: .*splits to files"),
        ("}}", "}, trust_remote_code: true}", "yaml:3: dataset_kwargs: .*only data_files"),
        ("task: animals", "task: birds", "yaml:1: task: 'birds' differs from the file name"),
    ],
)
def test_task_is_only_data(old: str, new: str, message: str, tmp_path: Path) -> None:
    folder = write(tmp_path, PLAIN.replace(old, new, 1))
    (folder / "linked").symlink_to("/etc/passwd")
    with pytest.raises(RecipeError, match=message):
        find_tasks(["animals"], folder)


PLAIN_TEXT = 'doc_to_text: "The {{ animal }} says"'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for i in range(10**12) %}x{% endfor %}", "is not allowed: For"),
        ("{% set a = animal + animal %}{{ a }}", "is not allowed: Assign"),
        ("{% include 'x' %}", "is not allowed: Include"),
        ("{{ 'a' * 10**12 }}", "is not allowed: Mul"),
        ("{{ '%1000000000d' % 1 }}", "is not allowed: Mod"),
        ("{{ range(10**12) }}", "has the step a function"),
        ("{{ lipsum(10**9) }}", "has the step a function"),
        ("{{ 'a'.center(10) }}", "has the step center"),
        ("{{ animal | regex_replace('(a+)+$', '') }}", "has the step regex_replace"),
        ("{{ animal.replace('', animal) }}", "calls replace with an argument"),
        ("{{ animal | join(animal) }}", "calls join with an argument"),
        ("{{ animal.strip(*animal) }}", "has the step strip"),
        ("{{ " + "animal" + " | join('abc')" * 9 + " }}", "can make a text too long"),
        ("{{ animal" + ".replace('a', 'aaaa')" * 9 + " }}", "can make a text too long"),
        ("{{ " + "(" * 5000 + " }}", "cannot be read"),
        ("{{ animal", "cannot be read"),
    ],
)
def test_endless_template_is_refused(template: str, message: str, tmp_path: Path) -> None:
    text = PLAIN.replace("doc_to_choice: [woof, meow]\n", "").replace(PLAIN_TEXT + "\n", "")
    for key in ("doc_to_text", "description", "doc_to_choice"):
        value = [template] if key == "doc_to_choice" else template
        folder = write(tmp_path, f"{text}{key}: {json.dumps(value)}\n")
        with pytest.raises(RecipeError, match=rf"yaml:7: {key}: the template .*{message}"):
            find_tasks(["animals"], folder)


@pytest.mark.parametrize(
    "template",
    [
        "The {{ animal }} says",
        "{{ animal.strip() | upper }}{% if sound == 0 %} barks{% else %} moos{% endif %}",
        "{{ ['A', 'B'][sound] ~ animal[:3] }}",
        "{{ sounds | join(', ') }} {{ animal.replace('\u2019', \"'\").split(' ')[-1] }}",
        "{{ {'a': 'b'}[animal] | default('none') }}",
    ],
)
def test_a_template_of_plain_steps_is_taken(template: str, tmp_path: Path) -> None:
    new = f"doc_to_text: {json.dumps(template)}"
    (task,) = find_tasks(["animals"], write(tmp_path, PLAIN.replace(PLAIN_TEXT, new)))
    assert task.config is not None
    assert task.config["doc_to_text"] == template


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num_fewshot: 1000000000", "yaml:9: num_fewshot: .*less than or equal to 1000"),
        ("metric_list: [{metric: acc, aggregation: os.system}]", "aggregation: .*os.system"),
        ("metric_list: [{metric: acc, class: x}]", "class: unknown key"),
        ("filter_list: [{name: a, filter: [{function: custom}]}]", "function: .*custom"),
        ("generation_kwargs: {custom_generate: a/b}", "custom_generate: unknown key"),
        ("generation_kwargs: {max_gen_toks: 1000000000}", "max_gen_toks: "),
        ("target_delimiter: [a]", "yaml:9: target_delimiter: "),
    ],
)
def test_unknown_task_values_are_refused(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        find_tasks(["animals"], write(tmp_path, f"{PLAIN}{line}\n"))
