"""lm-eval asks tasks of a run: offline, from local files, with nothing of a file executed."""

import json
import math
import os
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
from components.checkpoint.choice import newest_whole
from components.config.check import read_recipe
from components.convert.reading import load_weights
from components.errors import RecipeError
from tests.life.conftest import TINY, Program, act

pytestmark = [
    pytest.mark.long,  # most of it importing lm-eval and reading the tasks that it ships
    pytest.mark.skipif(  # the package is optional
        find_spec("lm_eval") is None,
        reason="lm-eval is not installed: requirements/evaluate.lock",
    ),
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
ENDING = f"""\
task: ending
{DATA}test_split: test
output_type: loglikelihood
doc_to_text: "The {{{{ animal | upper }}}} says"
doc_to_target: " {{{{ says }}}}"
"""


@pytest.fixture(scope="module")
def trained(home: Path) -> Path:
    run = home / "few"
    few = (word for word in TINY if not word.startswith("budget.total_tokens"))
    assert act(home, *few, "budget.total_tokens=2_048", f"run={run}") == 0
    return run


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


def test_tasks_score_as_our_own_model_does(
    trained: Path, tasks: Path, program: Program
) -> None:
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


def test_two_ranks_find_what_one_finds(trained: Path, tasks: Path, program: Program) -> None:
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


def test_what_a_rank_meets_is_said_once_and_as_by_one_process(
    trained: Path, tasks: Path, home: Path, program: Program
) -> None:
    broken = home / "broken"
    broken.mkdir()
    (broken / "animals.jsonl").write_bytes((tasks / "animals.jsonl").read_bytes())
    (broken / "choice.yaml").write_text(CHOICE.replace("{{ animal }}", "{{ animal.no.no }}"))
    words = ("action=evaluate", f"run={trained}", "tasks=[choice]", f"tasks_folder={broken}")
    alone, together = (program(*words, f"ranks={ranks}", status=2).stderr for ranks in (1, 2))
    assert "tasks.choice: lm-eval cannot use it" in alone
    assert together.count("tasks.choice: lm-eval cannot use it") == 1
    assert "Traceback" not in together


def test_an_exported_folder_scores_the_same_without_its_run(
    trained: Path, tasks: Path, program: Program
) -> None:
    of_run = program(
        "action=evaluate", f"run={trained}", "tasks=ending", f"tasks_folder={tasks}"
    )
    (folder,) = (trained / "export").iterdir()
    of_folder = program(
        "action=evaluate", f"file={folder}", "tasks=ending", f"tasks_folder={tasks}"
    )
    own, exported = (
        [float(cell.replace(",", "")) for cell in line.split()[2:]]
        for said in (of_run, of_folder)
        for line in said.stdout.splitlines()
        if line.split()[:2] == ["ending", "perplexity"]
    )
    assert exported == pytest.approx(own, rel=SAME)  # of an untrained model it has 20 digits
    assert "perplexity" in (trained / "report.html").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            CHOICE.replace("{{ animal }}", "{{ ''.__class__.__mro__ }}"),
            "tasks.choice: lm-eval cannot use it: SecurityError",
        ),
        (
            CHOICE.replace("{{ animal }}", "{{ fish }}"),
            "tasks.choice: lm-eval cannot use it: UndefinedError: 'fish' is undefined",
        ),
        (
            CHOICE + "metric_list: [{metric: ./metric.py}]\n",
            "tasks.choice.metric_list: './metric.py' is not a built-in metric of lm-eval",
        ),
        (
            CHOICE + "metric_list: [{metric: accuracy}]\n",
            r"'accuracy' is not a built-in metric of lm-eval\n  known: .*\bacc\b",
        ),
        (
            CHOICE + "metric_list: [{metric: acc, hf_evaluate: true}]\n",
            "metric_list.0.hf_evaluate: input should be False",
        ),
        (
            CHOICE.replace("test_split: test", "test_split: dev"),
            "tasks.choice: lm-eval cannot use it: KeyError",
        ),
    ],
)
def test_a_task_that_reaches_for_python_or_is_wrong_is_refused(
    text: str, message: str, trained: Path, tasks: Path, tmp_path: Path
) -> None:
    (tmp_path / "choice.yaml").write_text(text)
    (tmp_path / "animals.jsonl").write_bytes((tasks / "animals.jsonl").read_bytes())
    words = ("action=evaluate", f"run={trained}", "tasks=[choice]", f"tasks_folder={tmp_path}")
    with pytest.raises(RecipeError, match=message):
        evaluate.run(read_point(words))


def test_a_task_of_lm_eval_needs_its_name_and_its_data(
    trained: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    words = ("action=evaluate", f"run={trained}")
    with pytest.raises(RecipeError, match=r"unknown task 'sciqq'\n.*sciq"):
        evaluate.run(read_point([*words, "tasks=[sciqq]"]))
    with pytest.raises(RecipeError, match=r"tasks.sciq: its data set is not available"):
        evaluate.run(read_point([*words, "tasks=[sciq]"]))


def test_no_task_is_no_question(trained: Path) -> None:
    with pytest.raises(RecipeError, match=r"tasks: the task list is empty"):
        evaluate.run(read_point(["action=evaluate", f"run={trained}", "tasks=[]"]))
