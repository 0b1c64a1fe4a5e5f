"""A named list of tasks: staged, asked without a network, scored as by lm-eval itself."""

import contextlib
import json
import os
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest

from command.evaluate.lists import list_names, read_list
from components.errors import RecipeError
from tests.life.conftest import TINY, Program, act
from tests.life.hub import write_hub

pytestmark = [
    pytest.mark.long,  # most of it importing lm-eval and reading the tasks that it ships
    pytest.mark.skipif(  # the package is optional
        find_spec("lm_eval") is None,
        reason="lm-eval is not installed: requirements/evaluate.lock",
    ),
    pytest.mark.timeout(3_600),  # 65 data sets are staged and read, twice by lm-eval itself
]
PUBLISHED = {"score_arc_easy": 70.2, "score_mmlu": 25.9, "score_average": 60.3}
RUN = (
    *(word for word in TINY if not word.startswith(("budget.total", "checkpoint."))),
    "budget.total_tokens=2_048",
    "checkpoint.every_tokens=1_024",
    *(
        f"published.{key}={{value: {value}, unit: per cent, source: paper}}"
        for key, value in PUBLISHED.items()
    ),
)


@pytest.fixture(scope="module")
def manager() -> Any:
    from components.evaluate.harness import task_manager

    return task_manager(shipped=True)


@pytest.fixture(scope="module")
def trained(home: Path, manager: Any) -> Path:
    """A run with two checkpoints, and the data of ``mula9`` prepared beside its own."""
    from components.evaluate.task_list import iter_task_configs

    subjects = [one["dataset_name"] for one in iter_task_configs("mmlu", manager.task_index)]
    assert len(subjects) == 57
    write_hub(home, subjects)
    run = home / "few"
    assert act(home, *RUN, f"run={run}") == 0
    assert act(home, *RUN, "action=prepare", "tasks=mula9") == 0
    return run


@pytest.fixture(scope="module")
def evaluated(home: Path, trained: Path) -> list[dict[str, Any]]:
    """Both checkpoints, from another folder than the hub's, where no connection is made."""

    def refuse(*_: object) -> None:
        raise OSError("there is no network here")

    aside = home.with_name(f"{home.name}-elsewhere")
    aside.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        for name in ("connect", "connect_ex"):
            patched.setattr(socket.socket, name, refuse)
        patched.setattr(socket, "getaddrinfo", refuse)
        words = (f"run={trained}", "tasks=mula9", "checkpoints=all")
        assert act(aside, "action=evaluate", *words) == 0
    files = sorted((trained / "evaluation").glob("*.json"))
    return [json.loads(file.read_text()) for file in files]


def own_figures(home: Path, export: Path, manager: Any) -> dict[str, Any]:
    """Let lm-eval ask by itself, of the hub's own files: nothing staged, nothing guarded."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(export, dtype="float32")
    lm = HFLM(pretrained=model, tokenizer=AutoTokenizer.from_pretrained(export), batch_size=4)
    nine = [
        "arc_easy", "arc_challenge", "hellaswag", "piqa", "boolq", "sciq", "winogrande",
        "openbookqa", "mmlu",
    ]  # fmt: skip
    with contextlib.chdir(home):
        found = simple_evaluate(model=lm, tasks=nine, task_manager=manager)
    assert found is not None
    results: dict[str, Any] = found["results"]
    return results


def test_scores_are_those_of_lm_eval_by_itself(
    home: Path, trained: Path, evaluated: list[dict[str, Any]], manager: Any
) -> None:
    newest = evaluated[-1]
    own = own_figures(home, trained / "export" / newest["checkpoint"], manager)
    scores = newest["scores"]["mula9"]
    normed = {"arc_easy", "arc_challenge", "hellaswag", "piqa", "openbookqa"}
    for name, task in scores["tasks"].items():
        metric = "acc_norm" if name in normed else "acc"
        assert task["metric"] == metric
        assert task["score"] == pytest.approx(100 * own[name][f"{metric},none"]), name
        assert task["num_fewshot"] == 0
    assert len(scores["tasks"]) == 9
    assert len({task["score"] for task in scores["tasks"].values()}) > 2  # no constant
    mean = sum(task["score"] for task in scores["tasks"].values()) / 9
    assert scores["mean"] == pytest.approx(mean)


def test_each_checkpoint_has_its_scores_beside_those_published(
    trained: Path, evaluated: list[dict[str, Any]]
) -> None:
    assert [one["tokens_trained"] for one in evaluated] == [1_024, 2_048]
    for one in evaluated:
        scores = one["scores"]["mula9"]
        assert scores["published"] == PUBLISHED["score_average"]
        beside = {name: task["published"] for name, task in scores["tasks"].items()}
        assert beside["arc_easy"] == PUBLISHED["score_arc_easy"]
        assert beside["sciq"] is None
    page = (trained / "report.html").read_text()
    assert "Scores over tokens" in page


def test_an_exported_folder_is_asked_where_the_data_are_said_to_be(
    trained: Path, evaluated: list[dict[str, Any]], home: Path, program: Program
) -> None:
    export = trained / "export" / evaluated[0]["checkpoint"]
    words = ("action=evaluate", f"file={export}", "tasks=mula9")
    said = program(*words, status=2).stderr
    assert "the data of mula9 are not staged: tasks-mula9/tasks.json does not exist" in said
    assert "action=prepare stage=true tasks=mula9" in said
    said = program(*words, f"tasks_folder={home}/prepared").stdout
    rows = [line.split() for line in said.splitlines() if line.startswith("mula9")]
    score = evaluated[0]["scores"]["mula9"]["tasks"]["piqa"]["score"]
    (piqa,) = [row for row in rows if row[1] == "piqa"]
    assert piqa[2:6] == ["acc_norm", "0", piqa[4], f"{score:.2f}"]


def test_a_misspelt_list_is_offered_by_its_name(trained: Path, program: Program) -> None:
    said = program("action=evaluate", f"run={trained}", "tasks=mula8", status=2).stderr
    assert "unknown task 'mula8'" in said
    assert "mula9" in said
    said = program(*RUN, "action=prepare", "tasks=mula8", status=2).stderr
    assert "unknown task list: 'mula8'" in said
    assert "mula9" in said


def test_data_that_were_changed_or_are_of_another_list_are_refused(
    home: Path, trained: Path, program: Program
) -> None:
    place = home / "prepared" / "tasks-mula9"
    words = ("action=evaluate", f"run={trained}", "tasks=mula9")
    file = place / "allenai__sciq" / "default" / "test.parquet"
    before = file.read_bytes()
    file.write_bytes(before[:-1] + b"\0")
    assert "test.parquet: was changed" in program(*words, status=2).stderr
    file.write_bytes(before)
    record = place / "tasks.json"
    tree = json.loads(record.read_text())
    record.write_text(json.dumps(tree | {"reads": "0" * 64}))
    assert (
        "was staged for another version of the list mula9" in program(*words, status=2).stderr
    )
    record.write_text(json.dumps(tree))


def test_another_version_or_metric_than_the_list_names_is_refused(
    home: Path, trained: Path, evaluated: list[dict[str, Any]]
) -> None:
    from components.evaluate.harness import ask_list, open_harness
    from components.evaluate.task_list import open_staged

    task_list = read_list("mula9")
    data = open_staged(task_list, home / "prepared" / "tasks-mula9")
    export = trained / "export" / evaluated[0]["checkpoint"]
    with open_harness(export, compute=None, most_rows=4) as harness:
        for changed, problem in (
            ({"version": 9.0}, r"piqa has version 1.0, the list requires 9.0"),
            ({"metric": "bleu"}, r"piqa has no metric 'bleu'"),
        ):
            piqa = task_list.tasks["piqa"].model_copy(update=changed)
            other = task_list.model_copy(update={"tasks": {"piqa": piqa}})
            with pytest.raises(RecipeError, match=problem):
                ask_list(harness, other, data, print)


@pytest.mark.parametrize("name", list_names())
def test_every_list_names_tasks_as_lm_eval_has_them(name: str, manager: Any) -> None:
    from components.evaluate.task_list import iter_task_configs

    task_list = read_list(name)
    for question in task_list.iter_questions():
        task, leading = (
            task_list.tasks[question.task],
            manager.task_index[question.lm_eval_task].cfg,
        )
        own = [*iter_task_configs(question.lm_eval_task, manager.task_index)]
        version = (leading.get("metadata") or {}).get("version", "Yaml")
        assert str(version).removesuffix(".0") == str(task.version).removesuffix(".0")
        for one in own:
            assert task.split == (one.get("test_split") or one["validation_split"])
            assert task.metric in {one["metric"] for one in one["metric_list"]} | {"acc_norm"}
            if not task_list.each:  # of several languages only English is lm-eval's own
                assert question.dataset == one["dataset_path"]
                config = one.get("dataset_name") or "default"
                assert question.config_of(one.get("dataset_name")) == config
