"""Searches: planned and trained here, and what a kill or a forger leaves of their journal."""

import itertools
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.actions import train
from command.arguments import ROOT, Arguments
from command.main import main
from command.outcome import ActionResult
from command.study.journal import StudyJournal
from command.study.outcomes import PointOutcome
from command.study.schema import SearchStudy
from command.study.search import _close, _draw, _open_trials, _tried
from command.study.study_file import check_study
from components.errors import RecipeError
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
def test_local_study_continues(folder, monkeypatch, capfd):
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
def test_a_wrong_study_has_a_single_message(folder, capfd, words, message):
    write(folder)
    assert main(["-m", *words]) == 2
    said = capfd.readouterr().err
    assert re.search(message, said)
    assert "Traceback" not in said


SPACE = {"optimizer.lr": {"low": 1e-5, "high": 1e-2, "log": True}, "model.dim": [32, 64, 96]}
TRIALS = 4
SEARCH: dict[str, Any] = RATES["search"]


def study_of(**changes: Any) -> SearchStudy:
    few = SEARCH | {"trials": TRIALS}
    tree = json.loads(json.dumps({**RATES, "space": SPACE, "search": few, **changes}))
    found = check_study(tree, "rates.yaml")
    assert isinstance(found, SearchStudy)
    return found


def search(study: SearchStudy, file: Path) -> Any:
    """Go on with a search: a point of the smallest model has no figure."""
    trials = _open_trials(study, file)
    for number, point in _draw(study, trials):
        assert 1e-5 <= float(point["optimizer.lr"]) <= 1e-2
        small = point["model.dim"] == 32
        _close(trials, number, PointOutcome(None if small else 1.0 + number, "too small"))
    return trials


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of trials that have ended."""
    file = tmp_path_factory.mktemp("journal") / "study.journal"
    search(study_of(), file)
    return file


@pytest.fixture
def file(whole: Path, tmp_path: Path) -> Path:
    shutil.copy(whole, tmp_path)
    return tmp_path / whole.name


@pytest.mark.parametrize("cut", [0, 40, -1])
def test_a_journal_cut_by_a_kill_is_continued(cut: int, whole: Path) -> None:
    """At every line: whole, without its end, and after some bytes."""
    study, lines = study_of(), whole.read_bytes().splitlines(keepends=True)
    for place, line in enumerate(lines):
        file = whole.with_name(f"cut-{cut}-{place}")
        file.write_bytes(b"".join(lines[:place]) + line[:cut])
        ended = [json.loads(one) for one in lines[:place] if b'"op_code":6' in one]
        trials = search(study, file)
        assert len(_tried(trials)) == TRIALS
        kept = [one.values for one in trials.trials[: len(ended)]]
        assert kept == [one["values"] for one in ended]
        assert all(one.params.keys() == SPACE.keys() for one in _tried(trials))
        StudyJournal(file, study).read_logs(0)  # and again


def forge(file: Path, record: dict[str, Any]) -> None:
    """Put a record behind the last line; what it does not say is as in a line of its kind."""
    kinds = {one["op_code"]: one for one in map(json.loads, file.read_text().splitlines())}
    with file.open("a") as stream:
        stream.write(json.dumps(kinds.get(record["op_code"], {}) | record) + "\n")


SETUP = json.dumps([{"run": "touch x"}])
CHOICES = '{"name": "CategoricalDistribution", "attributes": {"choices": [%s]}}'


@pytest.mark.parametrize(
    "record",
    [
        {"op_code": 5, "param_name": "cluster.site.setup", "distribution": CHOICES % SETUP},
        {"op_code": 5, "param_name": "model.dim", "distribution": CHOICES % "1, 2, 3"},
        {"op_code": 5, "param_name": "optimizer.lr", "param_value_internal": 1.0},
        {"op_code": 5, "param_value_internal": 7.0},
        {"op_code": 5, "param_value_internal": float("nan")},
        {"op_code": 5, "param_value_internal": True},
        {"op_code": 5, "trial_id": TRIALS},
        {"op_code": 5, "distribution": "[" * 5000},
        {"op_code": 5, "distribution": '{"name": "os.system", "attributes": {}}'},
        {"op_code": 6, "values": [float("inf")]},
        {"op_code": 6, "state": 1, "values": ["3"]},
        {"op_code": 6, "state": 0},
        {"op_code": 6, "datetime_complete": "yesterday"},
        {"op_code": 4, "params": {"model.dim": 0}, "distributions": {"model.dim": CHOICES}},
        {"op_code": 4, "state": 0},
        {"op_code": 4, "system_attrs": {"fixed_params": {"cluster.site.setup": "x"}}},
        {"op_code": 0, "study_name": "other"},
        {"op_code": 1, "study_id": 0},
        {"op_code": 2, "user_attr": {"0": {"a": 1}}},
        {"op_code": 3, "study_id": 0, "system_attr": {"a": 1}},
        {"op_code": "5"},
    ],
)
def test_forged_record_is_refused_by_line(record: dict[str, Any], file: Path) -> None:
    lines = len(file.read_bytes().splitlines())
    forge(file, record)
    with pytest.raises(RecipeError) as refused:
        _open_trials(study_of(), file)
    assert refused.value.path == f"{file}:{lines + 1}"


@pytest.mark.parametrize("line", ["[]", "7", "{}", "[" * 100_000, "\x00", '{"op_code": 5'])
def test_a_line_that_is_not_a_record_is_refused(line: str, file: Path) -> None:
    file.write_text(line + "\n" + file.read_text())
    with pytest.raises(RecipeError, match=r"study\.journal:1"):
        _open_trials(study_of(), file)


def test_other_search_space_is_refused_and_old_lock_ignored(file: Path) -> None:
    wider = {**SPACE, "model.dim": [32, 64, 96, 128]}
    with pytest.raises(RecipeError, match="search space"):
        _open_trials(study_of(space=wider), file)
    file.with_name("study.journal.lock").symlink_to("study.journal-gone")
    assert len(_tried(search(study_of(), file))) == TRIALS


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "device", "large"])
def test_files_that_are_not_the_studys_are_not_opened(kind: str, tmp_path: Path) -> None:
    outside, file = tmp_path / "outside", tmp_path / "study.journal"
    outside.write_text("")
    make = {
        "link": lambda: file.symlink_to(outside),
        "hard link": lambda: file.hardlink_to(outside),
        "pipe": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "device": lambda: file.symlink_to("/dev/zero"),
        "large": lambda: os.truncate(os.open(file, os.O_CREAT | os.O_RDWR), 1 << 40),
    }
    make[kind]()
    with pytest.raises(RecipeError, match=r"study\.journal"):
        _open_trials(study_of(), file)
    assert outside.read_text() == ""


def test_a_study_starts_no_more_than_its_trials(tmp_path: Path) -> None:
    file, more = tmp_path / "study.journal", study_of(search=SEARCH | {"trials": 40})
    assert len(list(_draw(more, _open_trials(more, file)))) == 40
    assert len(list(_draw(study_of(), _open_trials(study_of(), file)))) == TRIALS
