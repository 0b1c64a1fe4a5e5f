"""Listed studies: planned, trained here, reported; what the words beside them may say."""

import csv
import errno
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.actions import train
from command.arguments import ROOT, Arguments
from command.composition.compose import compose_recipe
from command.main import main
from command.outcome import ActionResult
from command.study.request import read_study_request
from command.study.runs import runner_of
from command.study.schema import ListedStudy
from components.errors import RecipeError
from components.run.folder import create_run_folder
from tests.life.conftest import TINY

Said = pytest.CaptureFixture[str]

WEAK = "smng_p2_weak"
RATES: dict[str, Any] = yaml.safe_load("""
name: rates
description: How fast are two batches.
recipe: teuken7b
cluster: local
set: {budget.seed: 3}
grid: {budget.global_batch_tokens: [256, 320]}
products: {budget.total_tokens: [2, budget.global_batch_tokens]}
objective: {measured: step_seconds, planned: null}
baseline: {}
published:
  source: a paper
  unit: seconds
  convention: all steps
  values: [{at: {budget.global_batch_tokens: 256}, value: 2, place: page 1}]
figure: {of: figure 1, title: Steps, x_title: tokens, y_title: time,
  x: [budget.global_batch_tokens], series: [], log: []}
queue: {at_once: 1, poll_seconds: 1}
""")
OWN = ("budget.global_batch", "checkpoint.", "budget.total")
WORDS = (*(word for word in TINY if not word.startswith(OWN)), "checkpoint.every_tokens=512")


pytestmark = pytest.mark.usefixtures("folder")


def write(folder: Path, tree: dict[str, Any]) -> str:
    (folder / f"{tree['name']}.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    return f"study={tree['name']}.yaml"


def shipped(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((ROOT / "studies" / f"{name}.yaml").read_text())
    return tree


def test_a_point_refuses_the_run_of_another_recipe(folder: Path) -> None:
    request = read_study_request([write(folder, RATES), *WORDS, f"run={folder / 'runs'}"])
    assert isinstance(request.study, ListedStudy)
    point = request.study.points[0]
    other = compose_recipe(
        replace(
            request.arguments_of(point),
            file_values={**request.arguments_of(point).file_values, "budget.seed": 4},
        )
    )
    create_run_folder(other, request.folder_of(point))
    with pytest.raises(RecipeError, match=r"different recipe: budget\.seed is 4 there, 3 here"):
        runner_of(request)(point)()


@pytest.mark.parametrize(
    ("cluster", "keys", "message"),
    [
        ("smng_p2", {}, "this machine is not 64 nodes of smng_p2"),
        ("local", {"cluster.nodes": 2}, "this machine is not 2 nodes of local"),
    ],
)
def test_refused_point(folder: Path, cluster: str, keys: dict[str, int], message: str) -> None:
    study = RATES | {"cluster": cluster, "grid": {"budget.seed": [1]}, "set": keys}
    study |= {"products": {}, "published": RATES["published"] | {"values": []}}
    study["figure"] = RATES["figure"] | {"x": ["budget.seed"]}
    words = [write(folder, study), "action=train", f"run={folder / 'runs'}"]
    request = read_study_request(words)
    assert isinstance(request.study, ListedStudy)
    train_point = runner_of(request)
    with pytest.raises(RecipeError, match=message):
        train_point(request.study.points[0])()
    assert not (folder / "runs").exists()


def test_a_mapping_or_a_list_is_one_value(folder: Path) -> None:
    part = {"_target_": "components.model.positions.Learned", "num_positions": 64}
    for key, values in {
        "model.positions": [part, {"_target_": "a.Other"}],
        "parallelism.recompute": ["none", ["attention", "mlp"]],
    }.items():
        tree = RATES | {"grid": {key: values}, "products": {"budget.total_tokens": [512]}}
        tree["published"] = RATES["published"] | {"values": []}
        tree["figure"] = RATES["figure"] | {"x": [key]}
        request = read_study_request([write(folder, tree)])
        assert isinstance(request.study, ListedStudy)
        points = request.study.points
        assert [request.arguments_of(one).file_values[key] for one in points] == values
        if key == "model.positions":  # the folder of a version that had the mapping as text
            assert request.folder_of(points[0]).name == (
                "model.positions=__target_:_components.model.positions.Learned,_num_positions:_64_"
            )


def test_brackets_of_a_value_are_printed_unchanged(folder: Path, capfd: Said) -> None:
    tree = shipped("flash_gpt3")
    tree["points"] = tree["points"][:2]
    tree["published"]["values"] = tree["published"]["values"][:1]
    assert main(["-m", write(folder, tree), "action=plan"]) == 0
    printed = capfd.readouterr().out
    assert " [math] " in printed
    assert " [flash] " in printed


def test_planned_study_divides_by_baseline(folder: Path, capfd: Said) -> None:
    tree = shipped(WEAK)
    tree["grid"] = {"parallelism.data": [1, 8]}
    assert main(["-m", write(folder, tree), "action=plan", "output=json"]) == 0
    found = json.loads(capfd.readouterr().out)
    rates = []
    for data in (1, 8):
        words = [f"parallelism.data={data}", f"budget.global_batch_tokens={614_400 * data}"]
        whole = ["recipe=gpt175b", "cluster=smng_p2", "action=plan", "output=json"]
        assert main([*whole, *words]) == 0
        time = json.loads(capfd.readouterr().out)["time"]
        rates.append(time["tokens_per_second_per_device"])
    first, last = found["points"]
    assert (first["planned"], first["published"]) == (1.0, [])
    assert last["planned"] == rates[1] / rates[0]
    (quote,) = last["published"]
    assert quote["value"] == 0.93
    assert quote["deviation"] == last["planned"] / 0.93 - 1 == found["median_deviation"]
    assert last["point"] == {"parallelism.data": 8, "tiles": 1_024}
    assert [path.name for path in folder.iterdir()] == [f"{WEAK}.yaml"]
    words = ["parallelism.zero=0", "study.grid={parallelism.data: [1, 8, 9]}"]
    assert main(["-m", f"study={WEAK}.yaml", "action=plan", *words]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert f"changed by {' '.join(words)}: published values are for the file" in said
    assert "3 points, 1 published figures" in said


def test_bad_points_have_a_message_and_others_are_planned(folder: Path, capfd: Said) -> None:
    tree = shipped("bloom_nodes")
    tree["points"] = [*tree["points"][:1], tree["points"][-1]]
    tree["points"].append({**tree["points"][0], "parallelism.pipeline": 2})
    kept = (tree["published"]["values"][0], tree["published"]["values"][-1])
    tree["published"]["values"] = [dict(quote) for quote in kept]
    tree["published"]["values"][0]["at"] = {"parallelism.pipeline": 12}
    assert main(["-m", write(folder, tree), "action=plan", "output=json"]) == 0
    good, refused, large = json.loads(capfd.readouterr().out)["points"]
    assert (good["fits"], good["why"]) == (True, "")
    assert refused["planned"] is None
    assert "parallelism.pipeline: 72 is more than num_layers" in refused["why"]
    assert not large["fits"]
    assert large["why"].startswith("does not fit: ")
    assert large["planned"] > 0
    assert main(["-m", write(folder, tree), "action=plan"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "1 of 2 that ran do not fit in the plan, or are refused" in said


@pytest.mark.long
def test_each_point_once(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    grid = {"budget.global_batch_tokens": [256, 512, 320]}
    words = [write(folder, {**RATES, "grid": grid}), *WORDS, f"run={folder / 'runs'}"]
    begun: list[tuple[str, ...]] = []
    train_here = train.run

    def interrupted(arguments: Arguments) -> ActionResult:
        begun.append(arguments.words)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return train_here(arguments)

    monkeypatch.setattr(train, "run", interrupted)
    assert main(["-m", *words]) == 3
    assert "stopped; repeat the command to continue" in capfd.readouterr().err
    assert main(["-m", *words, "output=json"]) == 0
    found = json.loads(capfd.readouterr().out)
    run = folder / "runs" / "budget.global_batch_tokens=256"
    first, second, uneven = found["points"]
    assert first["measured"] == json.loads((run / "results.json").read_text())["step_seconds"]
    assert second["measured"] > 0
    assert uneven["measured"] is None
    assert "5 sequences per step" in uneven["why"]
    assert len(begun) == 3  # 256; 512, which is interrupted; 512 again; 320 is refused before
    (script,) = (folder / "runs").glob("plotly-*.min.js")
    later = folder / "runs" / "budget.global_batch_tokens=512" / "report.html"
    assert f'<script src="../{script.name}">' in later.read_text("utf-8")
    assert main(["action=report", *words, "file=page.html"]) == 0
    assert capfd.readouterr().out == "page.html\n"
    assert f"{first['measured']:.4g}" in (folder / "page.html").read_text()
    assert len(begun) == 3


def test_error_of_one_point(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """A full disk, a fault of this program, and a point that the recipe refuses."""
    study = {**RATES, "grid": {"budget.global_batch_tokens": [256, 320, 512, 1_024]}}
    errors = {
        256: OSError(errno.ENOSPC, "No space left on it", "/full"),
        512: KeyError("walnuts"),
    }

    def fail_or_finish(arguments: Arguments) -> ActionResult:
        batch = arguments.file_values["budget.global_batch_tokens"]
        if batch in errors:
            raise errors[batch]
        assert arguments.run is not None
        arguments.run.mkdir(parents=True)
        (arguments.run / "results.json").write_text('{"status": "finished", "step_seconds": 2}')
        return ActionResult()

    monkeypatch.setattr(train, "run", fail_or_finish)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    words = [write(folder, study), *WORDS, f"run={folder / 'runs'}", "output=json"]
    assert main(["-m", *words]) == 4  # as the fault alone
    said = capfd.readouterr()
    points = json.loads(said.out)["points"]
    assert [one["measured"] for one in points] == [None, None, None, 2]
    assert points[0]["why"] == "/full: No space left on it"
    assert "5 sequences per step" in points[1]["why"]
    assert points[2]["why"].endswith("KeyError: 'walnuts'")
    assert "[budget.global_batch_tokens=256] /full: No space left" in said.err


VARIES = "the study .* varies"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"-m study={WEAK} parallelism.data=4", f"parallelism.data: {VARIES}"),
        ("-m study=playbook_best recipe=gpt3b6", f"recipe: {VARIES} this key"),
        (f"-m study={WEAK} study.search.trials=4", "the study has no such key"),
        (f"-m study={WEAK} action=show", "action: 'show' does not work with a study"),
        ("-m study=rates.yaml action=plan", "action: a plan has no step_seconds"),
        ("-m study=plans.yaml", "a run does not measure time.step_seconds\n  add action=plan"),
        ("-m study=neither.yaml", r"neither.yaml.objective: has neither"),
        ("action=report study=smng_p2_search", "action: smng_p2_search is a search"),
        ("action=report study=rates.yaml file=.", "is a folder"),
        ("-m study=bad.yaml action=plan", r"unknown table: 'h100_layout.csv'\n.*h100_layouts"),
        ("-m study=both.yaml action=plan", r"both.yaml.points: the table sets it"),
        ("-m study=none.yaml action=plan", r"none.yaml.table: not a mapping"),
    ],
)
def test_wrong_study_has_message(folder: Path, capfd: Said, words: str, message: str) -> None:
    write(folder, RATES)
    for name, planned in {"plans": "time.step_seconds", "neither": None}.items():
        write(
            folder, RATES | {"name": name, "objective": {"measured": None, "planned": planned}}
        )
    table = shipped("playbook_best")
    write(folder, {**table, "name": "both", "points": []})
    write(folder, {**table, "name": "none", "table": "h100_layouts.csv"})
    table["table"]["file"] = "h100_layout.csv"
    write(folder, {**table, "name": "bad"})
    assert main(words.split()) == 2
    said = capfd.readouterr().err
    assert re.search(message, said)
    assert "Traceback" not in said


def test_the_table_of_best_layouts_is_the_fastest_row_of_each_cell() -> None:
    """Against a second reading of the file, by sorting instead of comparing."""
    with (ROOT / "benchmarks/data/h100_layouts.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["status"] == "Success"]
    rate, cell = "tokens_per_second_per_gpu", ("params_b", "nodes")
    rows.sort(key=lambda row: (*(float(row[c]) for c in cell), -float(row[rate])))
    groups = itertools.groupby(rows, key=lambda row: tuple(float(row[c]) for c in cell))
    best = [next(group) for _, group in groups]
    study = read_study_request(["study=playbook_best", "action=plan"]).study
    assert isinstance(study, ListedStudy)
    recipes = {"1.34": "playbook1b", "3.57": "playbook3b", "8.86": "playbook8b"}
    layout = ("dp", "tp", "pp")
    wanted = {
        (
            recipes[row["params_b"]],
            float(row["nodes"]),
            *(int(row[one]) for one in layout),
        ): float(row[rate])
        for row in best
    }
    keys = ("recipe", "nodes", *(f"parallelism.{d}" for d in ("data", "tensor", "pipeline")))
    # The playbook's figure for eight data ranks, and the fastest of the 8B model's rows.
    assert wanted["playbook1b", 1.0, 8, 1, 1] == 40_149.94
    assert wanted["playbook8b", 1.0, 2, 1, 4] == 7_503.28
    assert wanted == {
        tuple(quote.at[key] for key in keys): quote.value for quote in study.published.values
    }


def test_a_report_without_a_figure_is_refused_with_a_reason(folder: Path, capfd: Said) -> None:
    assert main(["action=report", "study=mula_weak", "cluster=local"]) == 2
    said = capfd.readouterr().err
    assert "study: no point of mula_weak has a figure: " in said
    assert "remove cluster=: the points are planned on aurora" in said
    assert not list(folder.glob("*.html"))
    tree = shipped("mula_weak") | {"objective": {"measured": "loss", "planned": None}}
    assert main(["action=report", write(folder, tree)]) == 2
    said = capfd.readouterr().err
    assert "has a figure: no point was planned or run\n  run the points first" in said
    assert main(["-m", "study=mula_weak", "cluster=local", "action=plan"]) == 2
    assert "no point has a figure: " in capfd.readouterr().err
