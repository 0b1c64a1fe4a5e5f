"""lm-eval asks tasks of a run: offline, with nothing of a file executed; alone or as a list."""

import contextlib
import json
import math
import os
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest
import torch
from sentencepiece import SentencePieceProcessor

from command.actions import evaluate
from command.arguments import read_point
from command.evaluate.lists import list_names, read_list
from command.outcome import Status
from components.checkpoint.choice import newest_whole
from components.config.check import read_recipe
from components.convert.reading import load_weights
from components.errors import RecipeError
from tests.life.conftest import Program, act, tiny
from tests.life.hub import write_hub

pytestmark = [
    pytest.mark.long,  # most of it importing lm-eval and reading the tasks that it ships
    pytest.mark.skipif(  # the package is optional
        find_spec("lm_eval") is None,
        reason="lm-eval is not installed: requirements/evaluate.lock",
    ),
    pytest.mark.timeout(3_600),  # 65 data sets are staged and read, twice by lm-eval itself
]
SAME = 1e-4  # relative: float32, another library's kernels
SOUNDS = ["woof woof", "miaow", "moo"]
DOCS = [
    {"animal": name, "sound": sound, "says": SOUNDS[sound]}
    for name, sound in (("dog", 0), ("cat", 1), ("cow", 2), ("puppy", 0), ("kitten", 1))
]
DATA = "dataset_path: json\ndataset_kwargs: {data_files: {test: animals.jsonl}}\n"
CHOICE = f"""\
task: choice
{DATA}test_split: test
output_type: multiple_choice
doc_to_text: "The {{{{ animal }}}} says"
doc_to_choice: {json.dumps(SOUNDS)}
doc_to_target: sound
"""
ANIMAL, METRIC = "{{ animal }}", f"{CHOICE}metric_list: [{{metric: "
ENDING = f"""\
task: ending
{DATA}test_split: test
output_type: loglikelihood
doc_to_text: "The {{{{ animal | upper }}}} says"
doc_to_target: " {{{{ says }}}}"
"""


PUBLISHED = {"score_arc_easy": 70.2, "score_mmlu": 25.9, "score_average": 60.3}
RUN = tiny(
    "budget.total_tokens=2_048",
    "checkpoint.every_tokens=1_024",
    *(
        f"published.{key}={{value: {value}, unit: per cent, source: paper}}"
        for key, value in PUBLISHED.items()
    ),
)


@pytest.fixture(scope="module")
def trained(home: Path) -> Path:
    """A run with two checkpoints."""
    assert act(home, *RUN, f"run={home / 'few'}") == 0
    return home / "few"


@pytest.fixture(scope="module")
def tasks(home: Path) -> Path:
    folder = home / "tasks"
    folder.mkdir()
    (folder / "animals.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    (folder / "choice.yaml").write_text(CHOICE)
    (folder / "ending.yaml").write_text(ENDING)
    return folder


def judge_endings(run: Path) -> Callable[[str, str], float]:
    """Sum the log-probabilities that our own model gives the pieces of an ending."""
    recipe = read_recipe(run / "recipe.json")
    chosen = newest_whole(run / "checkpoints")
    assert chosen is not None
    model = load_weights(chosen.checkpoint, chosen.marker, recipe.model).eval()
    data = Path(json.loads((run / "data.json").read_text())["folder"])
    pieces = SentencePieceProcessor(model_file=str(data / "tokenizer.model"))

    def log_likelihood(context: str, ending: str) -> float:
        start = len(pieces.encode(context))
        ids = torch.tensor(pieces.encode(f"{context} {ending}"))
        with torch.no_grad():
            logits = model(ids[None, :-1])[0, :, : recipe.decoder_spec.vocab_size]
        scores = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        return float(scores[start - 1 :].sum())

    return log_likelihood


def test_scores_of_tasks_equal_those_of_our_model(trained, tasks, program):
    words = ("action=evaluate", "output=json", f"run={trained}", "tasks=[choice,ending]")
    said = program(*words, f"tasks_folder={tasks}").stdout
    found: dict[str, Any] = json.loads(said)["tasks"]
    log_likelihood = judge_endings(trained)
    right = normed = 0
    for doc in DOCS:
        scores = [log_likelihood(f"The {doc['animal']} says", one) for one in SOUNDS]
        by_length = [score / len(one) for score, one in zip(scores, SOUNDS, strict=True)]
        right += scores.index(max(scores)) == doc["sound"]
        normed += by_length.index(max(by_length)) == doc["sound"]
    assert found["choice"]["metrics"]["acc"] == right / len(DOCS)
    assert found["choice"]["metrics"]["acc_norm"] == normed / len(DOCS)
    endings = [
        log_likelihood(f"The {str(doc['animal']).upper()} says", str(doc["says"]))
        for doc in DOCS
    ]
    perplexity = math.exp(-sum(endings) / len(endings))
    assert found["ending"]["metrics"]["perplexity"] == pytest.approx(perplexity, rel=SAME)
    assert found["ending"]["samples"] == len(DOCS)
    assert set(found["ending"]["sha256"]) == {"ending.yaml", "animals.jsonl"}
    assert "perplexity" in (trained / "report.html").read_text()


def test_two_ranks_have_the_scores_of_one(trained: Path, tasks: Path, program: Program) -> None:
    """Five questions: one rank answers three of them, the other two and a repetition."""
    words = ("action=evaluate", "output=json", f"run={trained}", f"tasks_folder={tasks}")
    asked = (*words, "tasks=[choice,ending]")
    one, two = (json.loads(program(*asked, f"ranks={ranks}").stdout) for ranks in (1, 2))
    for name, found in one["tasks"].items():
        other = two["tasks"][name]
        assert other["samples"] == found["samples"] == len(DOCS)
        figures = {key: value for key, value in found["metrics"].items() if "stderr" not in key}
        assert len(figures) >= 1
        assert {key: other["metrics"][key] for key in figures} == pytest.approx(figures)


def test_an_error_of_a_rank_has_the_message_of_one_process(trained, tasks, home, program):
    broken = home / "broken"
    broken.mkdir()
    (broken / "animals.jsonl").write_bytes((tasks / "animals.jsonl").read_bytes())
    (broken / "choice.yaml").write_text(CHOICE.replace(ANIMAL, "{{ animal.no.no }}"))
    words = ("action=evaluate", f"run={trained}", "tasks=[choice]", f"tasks_folder={broken}")
    alone, together = (program(*words, f"ranks={ranks}", status=2).stderr for ranks in (1, 2))
    assert "tasks.choice: lm-eval cannot use it" in alone
    assert together.count("tasks.choice: lm-eval cannot use it") == 1
    assert "Traceback" not in together


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CHOICE.replace(ANIMAL, "{{ ''.__class__.__mro__ }}"), "cannot use it: SecurityError"),
        (CHOICE.replace(ANIMAL, "{{ fish }}"), "UndefinedError: 'fish' is undefined"),
        (CHOICE.replace("split: test", "split: dev"), "choice: lm-eval cannot use it: K"),
        (
            f"{METRIC}./metric.py}}]\n",
            "choice.metric_list: './metric.py' is not a built-in metr",
        ),
        (f"{METRIC}accuracy}}]\n", r"'accuracy' is not a built-in .*\n  known: .*\bacc\b"),
        (f"{METRIC}acc, hf_evaluate: true}}]\n", "0.hf_evaluate: input should be False"),
    ],
)
def test_an_unsafe_or_invalid_task_is_refused(text, message, trained, tasks, tmp_path):
    (tmp_path / "choice.yaml").write_text(text)
    (tmp_path / "animals.jsonl").write_bytes((tasks / "animals.jsonl").read_bytes())
    words = ("action=evaluate", f"run={trained}", "tasks=[choice]", f"tasks_folder={tmp_path}")
    with pytest.raises(RecipeError, match=message):
        evaluate.run(read_point(words))


def test_an_unknown_task_and_missing_data_are_refused(trained, home, monkeypatch):
    monkeypatch.chdir(home)
    words = ("action=evaluate", f"run={trained}")
    for asked, message in (
        ("sciqq", r"unknown task 'sciqq'\n.*sciq"),
        ("sciq", r"tasks.sciq: its data set is not available"),
        ("", r"tasks: the task list is empty"),
    ):
        with pytest.raises(RecipeError, match=message):
            evaluate.run(read_point([*words, f"tasks=[{asked}]"]))


def test_tasks_of_a_diverged_run_have_null_for_nan(home, tasks, program):
    run, fault = home / "diverged", "guard.inject=[{fault: nan, rank: 0, step: 3}]"
    short = ("budget.total_tokens=2_048", "guard=none", fault)
    assert act(home, *tiny(*short), f"run={run}") == Status.DOES_NOT_HOLD

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    words = ("tasks=[choice,ending]", f"tasks_folder={tasks}", f"run={run}")
    done = program("action=evaluate", "output=json", *words)
    found = json.loads(done.stdout, parse_constant=refuse)["tasks"]
    assert found["ending"]["metrics"]["perplexity"] is None
    assert "metrics.perplexity" in found["ending"]["not_finite"]
    assert 0 <= found["choice"]["metrics"]["acc"] <= 1
    program("action=evaluate", *words)


@pytest.fixture(scope="module")
def manager() -> Any:
    from components.evaluate.harness import task_manager

    return task_manager(shipped=True)


@pytest.fixture(scope="module")
def staged(home: Path, trained: Path, manager: Any) -> Path:
    """The run, with the data of ``mula9`` prepared beside its own."""
    from components.evaluate.task_list import iter_task_configs

    subjects = [one["dataset_name"] for one in iter_task_configs("mmlu", manager.task_index)]
    assert len(subjects) == 57
    write_hub(home, subjects)
    assert act(home, *RUN, "action=prepare", "tasks=mula9") == 0
    return trained


@pytest.fixture(scope="module")
def evaluated(home: Path, staged: Path) -> list[dict[str, Any]]:
    """Both checkpoints, from another folder than the hub's, where no connection is made."""

    def refuse(*_: object) -> None:
        raise OSError("there is no network here")

    aside = home.with_name(f"{home.name}-elsewhere")
    aside.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        for name in ("connect", "connect_ex"):
            patched.setattr(socket.socket, name, refuse)
        patched.setattr(socket, "getaddrinfo", refuse)
        words = (f"run={staged}", "tasks=mula9", "checkpoints=all")
        assert act(aside, "action=evaluate", *words) == 0
    files = sorted((staged / "evaluation").glob("*.json"))
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


def test_scores_of_a_list_equal_those_of_lm_eval(home, trained, evaluated, manager):
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


def test_each_checkpoint_has_own_and_published_scores(trained, evaluated):
    assert [one["tokens_trained"] for one in evaluated] == [1_024, 2_048]
    for one in evaluated:
        scores = one["scores"]["mula9"]
        assert scores["published"] == PUBLISHED["score_average"]
        beside = {name: task["published"] for name, task in scores["tasks"].items()}
        assert beside["arc_easy"] == PUBLISHED["score_arc_easy"]
        assert beside["sciq"] is None
    page = (trained / "report.html").read_text()
    assert "Scores over tokens" in page


def test_an_exported_folder_is_scored_with_a_given_tasks_folder(
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("action=evaluate", "run=few"), "unknown task 'mula8'"),
        ((*RUN, "action=prepare"), "unknown task list: 'mula8'"),
    ],
)
def test_a_misspelled_list_gets_a_suggestion(words, message, trained, program):
    said = program(*words, "tasks=mula8", status=2).stderr
    assert message in said
    assert "mula9" in said


def test_changed_data_and_data_of_another_list_are_refused(home, staged, program):
    place = home / "prepared" / "tasks-mula9"
    words = ("action=evaluate", f"run={staged}", "tasks=mula9")
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


def test_another_version_or_metric_of_a_task_is_refused(home, trained, evaluated):
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
