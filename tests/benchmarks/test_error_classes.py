"""Errors of the planner by machine, and the public rows that they are computed from."""

import csv
from collections import defaultdict
from dataclasses import replace
from statistics import mean

import pytest

from benchmarks.planning.error_classes import (
    compare_classes,
    compare_left_out,
    measure_accuracy,
    read_all_rows,
)
from benchmarks.planning.planner_blind import read_hardware
from benchmarks.planning.public_steps import TABLE, PublicStep, read_public_steps
from benchmarks.results_store import ROOT
from components.planner.accuracy import read_classes
from components.planner.memory import plan_memory
from components.planner.software import OURS, read_software


def test_the_public_table_contains_the_rows_of_the_study() -> None:
    with (ROOT / "benchmarks/data/jean_zay_layouts.csv").open() as lines:
        known = [float(cells["step_seconds"]) for cells in csv.DictReader(lines)]
    with TABLE.open() as lines:
        cells = [row for row in csv.DictReader(lines) if row["machine"] == "jean_zay"]
    assert sorted(known) == sorted(float(row["step_seconds"]) for row in cells)


def test_rates_become_seconds_and_a_row_out_of_memory_has_none() -> None:
    rows = read_public_steps()
    assert [row.source for row in rows if not row.ran] == [
        "oellm-autoexp megatron_1.8B_multinode_speed_sweep_jupiter.yaml"
    ]
    experts = [row for row in rows if row.error_class == "jupiter, experts"]
    assert [round(row.seconds, 2) for row in experts] == [6.26, 6.02, 6.71]
    # 6 N + 6 L h s at 284.6 TFLOP/s on each of four devices
    flops = 6 * (1_720_574_976 - 118_784) + 6 * 28 * 2_048 * 4_096
    qwen = next(row for row in rows if row.machine == "jupiter")
    assert qwen.seconds == pytest.approx(8 * 4_096 * flops / (4 * 284.6e12), rel=0.001)


def test_plans_have_the_errors_of_the_measured_rows() -> None:
    assert tuple(measure_accuracy(read_all_rows())) == read_classes()


def test_an_engine_changes_the_plan_by_its_switches() -> None:
    """Compiled layers, overlap and experts one by one; a CUDA graph costs no launches."""
    speed, rows = read_software(OURS).speed, [row for row in read_all_rows() if row.ran]

    def ratio(row: PublicStep, engine: str) -> float:
        hardware = read_hardware(row.machine)
        other = replace(row, engine=engine).plan_seconds(hardware, speed)
        return other / row.plan_seconds(hardware, speed)

    experts = next(row for row in rows if row.error_class == "jupiter, experts")
    assert ratio(experts, "Megatron-DeepSpeed") < 1  # grouped products
    dense = [row for row in rows if row.error_class == "hopper, dense"]
    assert min(ratio(row, "Megatron-DeepSpeed") for row in dense) >= 1  # without overlap
    small = next(row for row in rows if row.source.startswith("oellm-autoexp JUPITER"))
    assert ratio(small, "Megatron-LM, CUDA graphs") <= 1


def test_a_source_needs_another_source_with_enough_rows() -> None:
    small = [row for row in read_all_rows() if row.machine in {"jupiter", "lumi"}]
    assert compare_left_out(small) == {}
    classes = compare_classes(small)
    assert {name: figures["n"] for name, figures in classes.items()} == {
        "jupiter, dense": 4,
        "jupiter, experts": 3,
        "lumi, dense": 2,
    }


def test_the_probability_to_fit_is_that_of_measured_layouts() -> None:
    """Runs of all programs with a planned peak of 0.9 to 1.1 of the usable memory."""
    software, cells = (
        read_software(OURS).memory,
        defaultdict[bool, list[tuple[float, bool]]](list),
    )
    for row in read_all_rows():
        memory = plan_memory(row.job, read_hardware(row.machine), software)
        if memory.memory_verdict == "tight":
            cells[memory.is_within_limit].append((memory.fit_probability, row.ran))
    assert [len(cells[within]) for within in (True, False)] == [43, 48]
    for pairs in cells.values():
        probabilities, outcomes = zip(*pairs, strict=True)
        assert mean(probabilities) == pytest.approx(mean(outcomes), abs=0.07)
