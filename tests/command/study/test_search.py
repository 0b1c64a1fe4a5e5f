"""Studies: planned, and trained here; what the words beside them may say."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.actions import train
from command.arguments import ROOT, Arguments
from command.main import main
from command.outcome import ActionResult
from tests.life.conftest import TINY

NAME = "smng_p2_search"
RATES: dict[str, Any] = yaml.safe_load("""
name: rates
description: Which rate is best.
recipe: teuken7b
cluster: local
set: {budget.seed: 3}
space: {optimizer.lr: [1.0e-5, 1.0e-3, 1.0e-2], budget.global_batch_tokens: [320, 256]}
products: {}
objective: {measured: held_out.final, planned: null, direction: minimize}
search: {sampler: random, trials: 8, at_once: 1, seed: 1, poll_seconds: 1}
published: {}
""")
OWN = ("optimizer.", "budget.global_batch", "checkpoint.", "budget.total", "recipe=")
WORDS = (
    *(word for word in TINY if not word.startswith(OWN)),
    "recipe=teuken7b",
    "budget.total_tokens=1_024",
    "checkpoint.every_tokens=1_024",
)


def write(folder: Path, **changes: Any) -> str:
    (folder / "rates.yaml").write_text(yaml.safe_dump(RATES | changes, sort_keys=False))
    return "study=rates.yaml"


@pytest.mark.long
def test_best_point_is_best_plan(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = yaml.safe_load((ROOT / "studies" / f"{NAME}.yaml").read_text())
    pipelines, tensors = [16, 32], [4, 8]
    tree["space"] |= {
        "parallelism.pipeline": pipelines,
        "parallelism.tensor": tensors,
        "parallelism.microbatch_sequences": [1],
        "microbatches": [100],
    }
    (folder / "few.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    words = ["study=few.yaml", "action=plan", "output=json", "study.search.trials=30"]
    words.append("study.search.sampler=random")  # it draws each of the four points
    assert main(["-m", *words]) == 0
    found = json.loads(capfd.readouterr().out)
    assert len(found["trials"]) == 30
    keys = ("parallelism.pipeline", "parallelism.tensor")
    tried = {tuple(trial["point"][key] for key in keys): trial for trial in found["trials"]}
    for one in itertools.product(pipelines, tensors):
        point = [f"parallelism.pipeline={one[0]}", f"parallelism.tensor={one[1]}"]
        batch = ["budget.global_batch_tokens=204_800", "budget.total_tokens=1_024_000"]
        fixed = ["parallelism.microbatch_sequences=1", "parallelism.data=1"]
        whole = ["recipe=gpt175b", "cluster=smng_p2", "action=plan", "output=json"]
        assert main([*whole, *point, *batch, *fixed]) == 0
        plan = json.loads(capfd.readouterr().out)
        known = tried[one]
        if plan["memory"]["verdict"] == "does_not_fit":
            assert known["figure"] is None
            assert known["why"].startswith("does not fit: ")
        else:
            assert known["figure"] == plan["time"]["tokens_per_second_per_device"]
    figures = [trial["figure"] for trial in found["trials"] if trial["figure"] is not None]
    assert found["best"][0]["figure"] == max(figures)
    assert found["published"]["planned_figure"] > 0
    assert not list(folder.glob("runs*"))


@pytest.mark.long
def test_local_study_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["-m", write(folder), *WORDS, f"run={folder / 'runs'}"]
    begun: list[tuple[str, ...]] = []
    train_here = train.run

    def interrupted(arguments: Arguments) -> ActionResult:
        if "budget.global_batch_tokens=256" in arguments.words:
            begun.append(arguments.words)
            if len(begun) == 2:
                raise KeyboardInterrupt
        return train_here(arguments)

    monkeypatch.setattr(train, "run", interrupted)
    assert main(words) == 3
    assert "stopped; repeat the command to continue" in capfd.readouterr().err
    assert main([*words, "output=json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert len(found["trials"]) == 8
    for trial in found["trials"]:
        rate = trial["point"]["optimizer.lr"]
        batch = trial["point"]["budget.global_batch_tokens"]
        if batch == 320:
            assert "5 sequences per step" in trial["why"]
            assert trial["figure"] is None
            continue
        run = folder / "runs" / f"optimizer.lr={rate},budget.global_batch_tokens=256"
        results = json.loads((run / "results.json").read_text())
        assert trial["figure"] == results["held_out"]["final"]
    figures = [trial["figure"] for trial in found["trials"] if trial["figure"] is not None]
    assert found["best"][0]["figure"] == min(figures)
    assert len(begun) == len(set(begun)) + 1  # the interrupted one
    assert main([*words, "study.search.trials=9"]) == 0
    said = capfd.readouterr()
    assert said.err.count("[9] ") == 1
    assert said.err.count("held") == 0
    assert "9 trials: " in said.out


def test_a_search_tries_lists(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    space = {"model.attention.backends": [["math"], ["flash"]]}
    key = "time.tokens_per_second"
    objective = {"measured": "tokens_per_second", "planned": key, "direction": "maximize"}
    given = write(folder, space=space, objective=objective, cluster="juwels", set={})
    words = ["-m", given, "scale=mini", "action=plan", "output=json"]
    assert main([*words, "study.search.trials=3"]) == 0
    trials = json.loads(capfd.readouterr().out)["trials"]
    tried = {trial["point"]["model.attention.backends"]: trial["why"] for trial in trials}
    assert tried == {"[math]": "", "[flash]": ""}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["study=smng_p2_searh"], "study: unknown study: 'smng_p2_searh'\n.*smng_p2_search"),
        (["study=none.yaml"], "study: none.yaml does not exist"),
        ([f"study={NAME}", "study=b"], "study: given twice"),
        ([f"study={NAME}", "parallelism.tensor=4"], "tensor: the study .* varies this key"),
        ([f"study={NAME}", "study.search.trails=4"], "study.search.trails: the study has no"),
        ([f"study={NAME}", "study.search.trials=0"], "search.trials: input should be greater"),
        (["study=rates.yaml", "action=plan"], "action: a plan has no held_out.final"),
    ],
)
def test_what_is_wrong_with_a_study_is_said_in_one_message(
    folder: Path, capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    write(folder)
    assert main(["-m", *words]) == 2
    said = capfd.readouterr().err
    assert re.search(message, said)
    assert "Traceback" not in said
