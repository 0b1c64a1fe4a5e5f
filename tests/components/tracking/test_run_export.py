"""What is told of a run: all that was measured, once, under one id."""

import math
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.tracking.run_export import RunExport, read_run_export
from tests.components.report.conftest import mark_line
from tests.components.tracking import runs
from tests.components.tracking.runs import AGAIN, START, STEPS, points_of, step_line, write_run


def told_points(told: RunExport) -> runs.Points:
    rows = told.metrics_rows
    return {(key, row.step, value) for row in rows for key, value in row.values.items()}


def test_every_value_of_every_line_is_exported(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [*START, *STEPS], status="finished")
    run_export = read_run_export(folder)
    assert told_points(run_export) == points_of([*START, *STEPS])
    assert [row.time for row in run_export.metrics_rows] == [1, 2, 3, 4, 5, 6]
    assert (run_export.name, run_export.status, run_export.began) == ("run", "finished", 0.0)


def test_null_is_exported_as_nan(tmp_path: Path) -> None:
    held_out = runs.held_out_line(2) | {"loss": None, "by_source": {"eu": None}}
    lines = [*START, step_line(1) | {"loss": None}, held_out]
    run_export = read_run_export(write_run(tmp_path / "run", lines))
    by_step = {row.step: row.values for row in run_export.metrics_rows}
    assert math.isnan(by_step[1]["loss"])
    assert math.isnan(by_step[2]["held_out_unweighted"])
    assert math.isnan(by_step[2]["held_out_by_source/eu"])
    assert (run_export.began, run_export.ended) == (0.0, 3.0)


def test_the_last_results_of_repeated_steps_are_exported(tmp_path: Path) -> None:
    run_export = read_run_export(write_run(tmp_path / "run", [*START, *STEPS, *AGAIN]))
    kept = [*START, *STEPS[:3], *AGAIN]
    assert told_points(run_export) == points_of(kept)
    assert [row.step for row in run_export.metrics_rows] == [0, 1, 2, 3, 4, 5, 5]
    assert run_export.status == "unfinished"


def test_the_id_is_kept_by_a_resume_in_another_layout_and_a_copy(tmp_path: Path) -> None:
    before = read_run_export(write_run(tmp_path / "run", [*START, *STEPS]))
    lines = [*START, *STEPS, mark_line("resume", 5)]
    moved = write_run(tmp_path / "copy", lines, "checkpoint.keep=9", "tracking=wandb")
    after = read_run_export(moved)
    assert after.id == before.id
    assert after.facts["fingerprint"] == before.facts["fingerprint"]


def test_another_seed_or_start_has_another_id(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [*START, *STEPS])
    seed = write_run(tmp_path / "seed", [*START, *STEPS], "budget.seed=7")
    later = [{**line, "time": float(10 + place)} for place, line in enumerate(START)]
    began = write_run(tmp_path / "began", later)
    assert len({read_run_export(folder).id for folder in (one, seed, began)}) == 3


def test_a_run_without_metrics_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", START[:1])
    with pytest.raises(RecipeError, match=r"run: .*has no measurements yet\n.*resume="):
        read_run_export(folder)
