"""A run's report shows the plan's step beside the measured one, where there is a plan."""

import json
from pathlib import Path
from typing import Any

from command.actions.plan import as_json
from components.planner.plan import plan_recipe
from components.report.outcome import load_entries
from components.report.page import write_report
from components.report.planned import planned_grid, planned_step
from tests.components.report.conftest import WriteRun
from tests.recipes.test_plans import at_home


def on_juwels() -> dict[str, Any]:
    tree = at_home("teuken7b").model_dump(mode="json")
    assert isinstance(tree, dict)
    return tree


def rows(*runs: Path) -> dict[str, tuple[str, ...]]:
    return {row.cells[0]: row.cells[1:] for row in planned_grid(load_entries(runs)).rows}


def test_the_planned_step_is_the_plan_s() -> None:
    recipe = at_home("teuken7b")
    time = as_json(recipe, plan_recipe(recipe))["time"]
    step = planned_step(on_juwels())
    assert step is not None
    assert step.seconds == time["step_seconds"]
    assert (step.low, step.high) == (time["step_seconds_low"], time["step_seconds_high"])


def test_the_report_sets_it_beside_the_median_of_the_steps(
    write_run: WriteRun, tmp_path: Path
) -> None:
    run = write_run(recipe=on_juwels())
    step = planned_step(on_juwels())
    assert step is not None
    shown = rows(run)
    assert shown["planned step"] == (f"{step.seconds:.3g} s",)
    assert shown["measured step, median"] == ("0.5 s",)
    assert shown["measured against planned"] == (f"{0.5 / step.seconds - 1:+.1%}",)
    html = write_report([run], tmp_path / "report.html").read_text("utf-8")
    assert "Planned beside measured" in html
    assert f"<td>{step.seconds:.3g} s</td>" in html


def test_a_machine_without_figures_leaves_the_report_as_it_was(
    write_run: WriteRun, tmp_path: Path
) -> None:
    assert json.loads((write_run("a") / "recipe.json").read_text())["cluster"]["name"]
    assert rows(tmp_path / "a") == {}
    html = write_report([tmp_path / "a"], tmp_path / "report.html").read_text("utf-8")
    assert "Planned beside measured" not in html


def test_of_several_runs_those_without_a_plan_have_a_dash(write_run: WriteRun) -> None:
    shown = rows(write_run("here"), write_run("there", recipe=on_juwels(), lines=[]))
    assert shown["planned step"][0] == "—" != shown["planned step"][1]
    assert shown["measured step, median"] == ("0.5 s", "—")
    assert shown["measured against planned"] == ("—", "—")


def test_a_recipe_of_another_version_or_an_unmeasured_device_has_no_planned_step() -> None:
    assert planned_step(on_juwels() | {"no_such_key": 1}) is None
    assert planned_step(at_home("bloom1b7").model_dump(mode="json")) is None
    local = at_home("teuken7b", "cluster.hardware=none").model_dump(mode="json")
    assert planned_step(local) is None
