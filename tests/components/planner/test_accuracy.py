"""Measured steps: the range of a plan from its class, and constants that are fitted to them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.planning.measured import MeasuredLayout, read_rows
from benchmarks.planning.planner_accuracy import DATA, is_timed
from components.errors import RecipeError
from components.planner.accuracy import FEWEST_ROWS, find_accuracy
from components.planner.calibration import MEMORY, SPEED, CalibrationStep, fit_memory, fit_speed
from components.planner.job import TrainingJob
from components.planner.memory import rank_memory
from components.planner.software import OURS, read_software, replace_constants
from components.planner.time import plan_time
from tests.components.planner.jobs import gpt, hopper, job, layout, with_values

SMALL = gpt(dim=1_024, num_layers=32, num_heads=16)


def dense(ranks: int) -> TrainingJob:
    return job(SMALL, layout(data=ranks))


def experts() -> TrainingJob:
    return replace(dense(8), shape=with_values(SMALL, mlp={"num_experts": 8, "top_k": 2}))


@pytest.mark.parametrize(("ranks", "nodes"), [(8, "few"), (64, "few"), (65, "many")])
def test_a_machine_with_enough_measured_steps_has_its_own_errors(ranks, nodes):
    accuracy = find_accuracy("hopper", dense(ranks))
    assert (accuracy.machine, accuracy.nodes) == ("hopper", nodes)
    assert accuracy.rows >= FEWEST_ROWS


@pytest.mark.parametrize("machine", ["juwels", "unmeasured"])
def test_a_machine_with_few_measured_steps_has_the_errors_of_others(machine: str) -> None:
    accuracy = find_accuracy(machine, dense(64))
    assert (accuracy.machine, accuracy.layers) == (None, "dense")


def test_plans_of_experts_do_not_use_errors_of_dense_models() -> None:
    wide, narrow = find_accuracy("hopper", experts()), find_accuracy("hopper", dense(8))
    assert wide.layers == "experts"
    assert wide.p90_factor > narrow.p90_factor


def test_a_class_is_described_by_machine_nodes_and_kind() -> None:
    few = find_accuracy("hopper", dense(8)).model_copy(update={"rows": 3})
    assert few.description == "3 on hopper with up to 8 nodes"
    others = find_accuracy("juwels", experts()).model_copy(update={"rows": 3})
    assert others.description == "3 of mixtures of experts on other machines"


SHIPPED = read_software(OURS)
ROWS = [row for row in read_rows(DATA / "h100_layouts.csv") if is_timed(row)]
# Far from what is shipped, and constants on which most layouts depend.
SPEED_THERE = {"product_fraction": 0.45, "exposed_fraction": 0.5}
MEMORY_THERE = {"fragmentation": 1.4, "base_bytes": 9e8}


def measured_there(rows: Sequence[MeasuredLayout]) -> list[CalibrationStep]:
    """What these layouts would take if other constants were true."""
    there = replace_constants(SHIPPED, SPEED_THERE, MEMORY_THERE)
    return [
        CalibrationStep(
            job=row.job,
            seconds=plan_time(row.job, hopper(), there.speed).total_seconds,
            peak_bytes=rank_memory(row.job, 0, there.memory).peak_bytes,
        )
        for row in rows
    ]


@pytest.mark.long
def test_time_constants_are_recovered_from_simulated_steps() -> None:
    fit = fit_speed(measured_there(ROWS[::16]), hopper(), SHIPPED)
    assert fit.is_improvement
    assert fit.errors.before.median > 0.04
    assert fit.errors.held_out.median < 0.01
    for name, value in SPEED_THERE.items():
        assert fit.constants[name] == pytest.approx(value, rel=0.1)


@pytest.mark.long
def test_memory_constants_are_recovered() -> None:
    fit = fit_memory(measured_there(ROWS[::16]), SHIPPED)
    assert fit is not None
    assert fit.errors.held_out.p90 < 0.02
    for name, value in MEMORY_THERE.items():
        assert fit.constants[name] == pytest.approx(value, rel=0.1)


@pytest.mark.long
def test_half_of_real_measurements_lowers_the_error_on_the_other_half() -> None:
    rows = [row for row in ROWS if row.nodes in {1, 2, 8}][::4]
    steps = [CalibrationStep(job=row.job, seconds=row.seconds, peak_bytes=None) for row in rows]
    # The shipped constants saw these rows, so the fit begins with those of another machine.
    there = {"product_fraction": 0.5, "launch_seconds": 1e-4}
    elsewhere = replace_constants(SHIPPED, there, {})
    fit = fit_speed(steps, hopper(), elsewhere)
    assert fit.is_improvement
    assert fit.errors.held_out.median < 0.9 * fit.errors.before.median
    assert fit.errors.held_out.mean < 0.6 * fit.errors.before.mean
    assert fit.errors.held_out.p90 < fit.errors.before.p90


@pytest.mark.long
def test_an_outlier_step_moves_constants_little() -> None:
    steps = measured_there(ROWS[::16])
    slowed = [replace(steps[0], seconds=20 * steps[0].seconds), *steps[1:]]
    fit = fit_speed(slowed, hopper(), SHIPPED)
    assert fit.constants["product_fraction"] == pytest.approx(0.45, rel=0.1)


@pytest.mark.long
def test_a_layout_measured_often_counts_once() -> None:
    steps = measured_there(ROWS[::24])
    once = fit_speed(steps, hopper(), SHIPPED)
    often = fit_speed([*steps, *steps[:5] * 9], hopper(), SHIPPED)
    assert often.layouts == once.layouts == len({step.job for step in steps})
    assert often.constants == once.constants


def test_an_undetermined_constant_stays() -> None:
    alone = [row for row in ROWS if row.nodes == row.job.layout.tensor == 1][:30]
    fit = fit_speed(measured_there(alone), hopper(), SHIPPED)
    for name in ("call_seconds", "exposed_fraction"):
        shipped = getattr(SHIPPED.speed, name)
        assert fit.constants[name] == pytest.approx(shipped, rel=0.01, abs=1e-4)


def test_three_layouts_are_too_few() -> None:
    with pytest.raises(RecipeError, match=rf"3 layouts .* {len(SPEED)} constants need 16"):
        fit_speed(measured_there(ROWS[::16])[:3], hopper(), SHIPPED)
    assert fit_memory(measured_there(ROWS[::16])[: 2 * len(MEMORY) - 1], SHIPPED) is None
