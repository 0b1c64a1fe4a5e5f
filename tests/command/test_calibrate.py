"""Calibration from the command line: runs in, a file beside the profile out."""

import json
from collections.abc import Mapping
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
from components.planner.software import OURS, read_software, replace_constants
from components.planner.time import plan_time

Said = pytest.CaptureFixture[str]

RUNS = ("action=plan", "output=json")
PLAN = (*RUNS, "cluster=hopper")
SHIPPED = read_software(OURS)
THERE = replace_constants(SHIPPED, {"product_fraction": 0.45}, {"fragmentation": 1.5})
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
    return plan_time(
        job_from_recipe(recipe), recipe.cluster.hardware, THERE.speed
    ).total_seconds


def run_folder(folder: Path, cells: Cells, **changes: object) -> Path:
    recipe = composed(cells)
    results = {
        "status": "finished",
        "device": "cuda:0",
        "tokens_per_second": recipe.budget.global_batch_tokens / seconds_there(recipe),
        "peak_memory_bytes": rank_memory(job_from_recipe(recipe), 0, THERE.memory).peak_bytes,
    }
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(recipe.model_dump(mode="json")))
    (folder / "results.json").write_text(json.dumps(results | changes))
    return folder


def run_folders(folder: Path, rows: list[dict[str, object]]) -> str:
    runs = [run_folder(folder / f"run{place}", cells) for place, cells in enumerate(rows)]
    return f"calibrate=[{','.join(map(str, runs))}]"


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The calibration from all points but one."""
    folder = tmp_path_factory.mktemp("taught")
    rows = points()
    del rows[UNSEEN]
    word = run_folders(folder, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("components.planner.software.PROFILES", folder)
        assert main(["action=plan", word]) == 0
    return (folder / "hopper.calibration.yaml").read_text()


def plan(capfd: Said, *words: str) -> Any:
    assert main([*PLAN, *words]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.long
def test_calibrated_plan_is_accurate(profiles: Path, taught: str, capfd: Said) -> None:
    unseen, count = points()[UNSEEN], len(points()) - 1
    words = [f"{key}={value}" for key, value in unseen.items()]
    before = plan(capfd, *words)
    assert before["calibration"] is None
    (profiles / "hopper.calibration.yaml").write_text(taught)
    kept = yaml.safe_load(taught)
    assert kept["device"] == "NVIDIA H100-80GB"
    assert [source["name"] for source in kept["sources"]][:2] == ["run0", "run1"]
    assert {source["steps"] for source in kept["sources"]} == {1}
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


@pytest.mark.long
def test_constants_that_do_not_help_are_not_fitted(profiles: Path, capfd: Said) -> None:
    runs = []
    for place, cells in enumerate(points()):
        recipe = composed(cells)
        assert isinstance(recipe.cluster.hardware, Hardware)
        step = plan_time(job_from_recipe(recipe), recipe.cluster.hardware, SHIPPED.speed)
        rate = recipe.budget.global_batch_tokens / step.total_seconds
        name = profiles / f"run{place}"
        runs.append(run_folder(name, cells, tokens_per_second=rate, peak_memory_bytes=0))
    assert main(["action=plan", f"calibrate=[{','.join(map(str, runs))}]"]) == 1
    assert "not saved: " in capfd.readouterr().out
    assert not (profiles / "hopper.calibration.yaml").exists()


def test_runs_without_information_are_refused(profiles: Path, capfd: Said) -> None:
    cells = points()[0]
    ramp = "{start_tokens: 65_536, increment_tokens: 65_536, over_tokens: 1_000_000}"
    run_folder(profiles / "ramp", {**cells, "budget.ramp_up": ramp})
    run_folder(profiles / "moved", cells)
    (profiles / "moved" / "recipe-before-step-4.json").write_text("{}")
    run_folder(profiles / "untimed", cells, tokens_per_second=0.0)
    run_folder(profiles / "cpu", cells, device="cpu")
    run_folder(profiles / "other", {**cells, "cluster.name": "juwels"})
    expected = {
        "ramp": "ramp changed its layout or batch size",
        "moved": "moved changed its layout or batch size",
        "untimed": "untimed changed its layout or batch size, or has no step times",
        "cpu": "cpu ran on a CPU",
        "none": "none has no results.json",
        "other,timed": "the runs used 2 clusters: hopper, juwels",
        "timed,two": "calibrate: 2 layouts were measured; 8 constants",
    }
    run_folder(profiles / "timed", cells)
    run_folder(profiles / "two", points()[1])
    for name, message in expected.items():
        assert main([*RUNS, f"calibrate=[{name}]"]) == 2
        assert message in capfd.readouterr().err


def test_an_invalid_calibration_is_named(profiles: Path, capfd: Said) -> None:
    file = profiles / "hopper.calibration.yaml"
    for text, message in {
        "speed: [": "hopper.calibration.yaml: cannot be read",
        "cluster: hopper": "hopper.calibration.yaml.device: missing",
    }.items():
        file.write_text(text)
        assert main([*PLAN, "recipe=playbook1b"]) == 2
        assert message in capfd.readouterr().err


@pytest.mark.long
def test_other_calibration_is_not_used(profiles: Path, taught: str, capfd: Said) -> None:
    file = profiles / "hopper.calibration.yaml"
    file.write_text(taught.replace("NVIDIA H100-80GB", "NVIDIA H200"))
    assert plan(capfd, "recipe=playbook1b")["calibration"] is None
    file.write_text(taught.replace("product_fraction", "product_friction"))
    assert main([*PLAN, "recipe=playbook1b"]) == 2
    assert "speed.product_friction: the planner has no such constant" in capfd.readouterr().err
