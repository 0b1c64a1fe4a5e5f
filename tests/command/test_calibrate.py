"""Calibration from the command line: tables and runs in, a file beside the profile out."""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.planner.job import job_from_recipe
from components.planner.memory import rank_memory
from components.planner.software import OURS, corrected, read_software
from components.planner.time import plan_time

RUNS = ("action=plan", "output=json")
PLAN = (*RUNS, "cluster=hopper")
SHIPPED = read_software(OURS)
THERE = corrected(SHIPPED, {"product_fraction": 0.45}, {"fragmentation": 1.5})
UNSEEN = 7
Cells = Mapping[str, object]


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("components.planner.software.PROFILES", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def points() -> list[dict[str, object]]:
    sizes = ((1, 1, 4), (1, 2, 8), (2, 1, 8), (4, 1, 2), (2, 2, 4), (8, 1, 4))
    return [
        {
            "recipe": recipe,
            "cluster.nodes": 2,
            "parallelism.tensor": tensor,
            "parallelism.pipeline": pipeline,
            "parallelism.microbatch_sequences": 1,
            "budget.global_batch_tokens": 4_096 * 16 * microbatches,
        }
        for recipe in ("playbook1b", "playbook3b", "playbook8b", "teuken7b")
        for tensor, pipeline, microbatches in sizes
    ]


def composed(cells: Cells) -> Recipe:
    words = [f"{key}={value}" for key, value in cells.items()]
    return compose_recipe(read_point(["cluster=hopper", *words]))


def seconds_there(recipe: Recipe) -> float:
    assert isinstance(recipe.cluster.hardware, Hardware)
    return plan_time(job_from_recipe(recipe), recipe.cluster.hardware, THERE.speed).total


def write(file: Path, rows: Sequence[Cells]) -> None:
    with file.open("w", newline="") as lines:
        table = csv.DictWriter(lines, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def measured(cells: Cells) -> dict[str, object]:
    recipe = composed(cells)
    peak = rank_memory(job_from_recipe(recipe), 0, THERE.memory).peak
    return {
        **cells,
        "step_seconds": seconds_there(recipe),
        "peak_memory_bytes": peak,
    }


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The calibration from all points but one."""
    folder = tmp_path_factory.mktemp("taught")
    rows = points()
    del rows[UNSEEN]
    write(folder / "steps.csv", [measured(cells) for cells in rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("components.planner.software.PROFILES", folder)
        assert main(["action=plan", "cluster=hopper", f"calibrate={folder}/steps.csv"]) == 0
    return (folder / "hopper.calibration.yaml").read_text()


def plan(capfd: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*PLAN, *words]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.long
def test_plans_agree_with_what_was_measured_once_a_table_has_taught_them(
    profiles: Path, taught: str, capfd: pytest.CaptureFixture[str]
) -> None:
    unseen, count = points()[UNSEEN], len(points()) - 1
    words = [f"{key}={value}" for key, value in unseen.items()]
    before = plan(capfd, *words)
    assert before["calibration"] is None
    (profiles / "hopper.calibration.yaml").write_text(taught)
    kept = yaml.safe_load(taught)
    assert kept["device"] == "NVIDIA H100-80GB"
    assert [source["name"] for source in kept["sources"]] == ["steps.csv"]
    assert kept["speed"]["product_fraction"] == pytest.approx(0.45, rel=0.1)
    assert kept["memory"]["fragmentation"] == pytest.approx(1.5, rel=0.05)
    after = plan(capfd, *words)
    truth = seconds_there(composed(unseen))
    errors = [abs(tree["time"]["step_seconds"] / truth - 1) for tree in (before, after)]
    assert errors[1] < 0.02 < errors[0]
    assert after["calibration"]["layouts"] == count
    high = after["time"]["step_seconds_high"] / after["time"]["step_seconds"] - 1
    assert high == pytest.approx(kept["time_error"]["held_out"]["p90"])
    assert main(["action=plan", "cluster=hopper", *words]) == 0
    assert f"calibrated on {count} layouts" in " ".join(capfd.readouterr().out.split())


def run_folder(folder: Path, cells: Cells, **changes: object) -> Path:
    recipe = composed(cells)
    results = {
        "status": "finished",
        "device": "cuda:0",
        "tokens_per_second": recipe.budget.global_batch_tokens / seconds_there(recipe),
        "peak_memory_bytes": 0,
    }
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(recipe.model_dump(mode="json")))
    (folder / "results.json").write_text(json.dumps(results | changes))
    return folder


@pytest.mark.long
def test_run_folders_calibrate_as_a_table_does(
    profiles: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = points()
    write(profiles / "steps.csv", [measured(cells) for cells in rows[:20]])
    runs = [run_folder(profiles / f"run{i}", cells) for i, cells in enumerate(rows[20:])]
    named = ",".join(["steps.csv", *(run.name for run in runs)])
    assert main([*PLAN, f"calibrate=[{named}]"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["layouts"] == len(rows)
    assert found["file"] == str(profiles / "hopper.calibration.yaml")
    assert [source["steps"] for source in found["sources"]] == [20, *[1] * len(runs)]


@pytest.mark.long
def test_what_does_not_help_is_not_kept(
    profiles: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = points()
    exact = []
    for cells in rows:
        recipe = composed(cells)
        assert isinstance(recipe.cluster.hardware, Hardware)
        step = plan_time(job_from_recipe(recipe), recipe.cluster.hardware, SHIPPED.speed)
        exact.append({**cells, "step_seconds": step.total})
    write(profiles / "steps.csv", exact)
    assert main(["action=plan", "cluster=hopper", "calibrate=steps.csv"]) == 1
    assert "not kept: " in capfd.readouterr().out
    assert not (profiles / "hopper.calibration.yaml").exists()


HEAD = "recipe,step_seconds,peak_memory_bytes\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe\nteuken7b\n", "calibrate: steps.csv has no column step_seconds"),
        (f"{HEAD}teuken7b,1\n", "steps.csv:2: the line has not as many cells as the head"),
        (f"{HEAD}teuken7b,fast,1\n", "steps.csv:2: step_seconds: 'fast' is no positive number"),
        (
            f"{HEAD}teuken7b,1,-1\n",
            "steps.csv:2: peak_memory_bytes: '-1' is no positive number",
        ),
        (f"{HEAD}teuken8b,1,1\n", "steps.csv:2: recipe: there is no recipe 'teuken8b'"),
        (
            f"{HEAD}teuken7b,1,1\nbloom3b,1,1\n",
            "calibrate: 2 layouts were measured; 9 constants",
        ),
        (f"{HEAD}../x.yaml,1,1\n", "steps.csv:2: recipe: '../x.yaml' leads out of the working"),
        (
            "recipe,data.folder,step_seconds\nteuken7b,/somewhere,1\n",
            "steps.csv:2: data.folder: '/somewhere' leads out of the working folder",
        ),
        (
            "recipe,parallelism,step_seconds\nteuken7b,auto,1\n",
            "steps.csv:2: parallelism: auto, but a step was measured in one layout",
        ),
        (HEAD, "calibrate: the steps are of 0 clusters: no steps"),
        ("\xff", "calibrate: cannot read steps.csv"),
    ],
)
def test_a_table_that_says_nothing_is_refused(
    profiles: Path, capfd: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (profiles / "steps.csv").write_bytes(text.encode("latin-1"))
    assert main([*PLAN, "calibrate=[steps.csv]"]) == 2
    assert capfd.readouterr().err.startswith(message)
    assert list(profiles.iterdir()) == [profiles / "steps.csv"]


def test_a_layout_that_is_searched_for_was_not_measured(
    profiles: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (profiles / "steps.csv").write_text(f"{HEAD}teuken7b,1,1\n")
    assert main([*PLAN, "calibrate=[steps.csv]", "parallelism=auto"]) == 2
    assert "parallelism: auto, but a step was measured" in capfd.readouterr().err


def test_runs_that_say_nothing_are_refused(
    profiles: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cells = points()[0]
    ramp = "{start_tokens: 65_536, increment_tokens: 65_536, over_tokens: 1_000_000}"
    run_folder(profiles / "ramp", {**cells, "budget.ramp_up": ramp})
    run_folder(profiles / "moved", cells)
    (profiles / "moved" / "recipe-before-step-4.json").write_text("{}")
    run_folder(profiles / "untimed", cells, tokens_per_second=0.0)
    run_folder(profiles / "cpu", cells, device="cpu")
    run_folder(profiles / "other", {**cells, "cluster.name": "juwels"})
    expected = {
        "ramp": "the steps of ramp are not all alike",
        "moved": "the steps of moved are not all alike",
        "untimed": "the steps of untimed are not all alike, or none was timed",
        "cpu": "cpu ran on a CPU",
        "none": "none is no run that has ended",
        "other,untimed2": "the steps are of 2 clusters: hopper, juwels",
    }
    run_folder(profiles / "untimed2", cells)
    for name, message in expected.items():
        assert main([*RUNS, f"calibrate=[{name}]"]) == 2
        assert message in capfd.readouterr().err


def test_a_calibration_that_is_none_is_named(
    profiles: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = profiles / "hopper.calibration.yaml"
    for text, message in {
        "speed: [": "hopper.calibration.yaml: cannot be read",
        "cluster: hopper": "hopper.calibration.yaml.device: missing",
    }.items():
        file.write_text(text)
        assert main([*PLAN, "recipe=playbook1b"]) == 2
        assert message in capfd.readouterr().err


@pytest.mark.long
def test_only_the_calibration_of_this_device_and_of_known_constants_counts(
    profiles: Path, taught: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = profiles / "hopper.calibration.yaml"
    file.write_text(taught.replace("NVIDIA H100-80GB", "NVIDIA H200"))
    assert plan(capfd, "recipe=playbook1b")["calibration"] is None
    file.write_text(taught.replace("product_fraction", "product_friction"))
    assert main([*PLAN, "recipe=playbook1b"]) == 2
    assert "speed.product_friction: the planner has no such constant" in capfd.readouterr().err


def test_a_pipe_in_the_place_of_a_table_is_not_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "steps.csv")
    words = ["action=plan", "cluster=hopper", f"calibrate={tmp_path}/steps.csv"]
    assert main(words) == 2
    assert "steps.csv is no regular file" in capfd.readouterr().err
