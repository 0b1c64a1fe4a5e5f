"""The page of a plan, with every number of the plan; its charts and its tables."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from components.planner.memory import RankMemory
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from components.planner.schedule import list_actions
from components.planner.states import States, UpdateBytes
from components.planner.timeline import PassSeconds, Timeline, simulate_step
from components.report import plan_page
from components.report.document import write_document
from components.report.plan_tables import Picture, bill_rows, memory_sheet, picture_of
from tests.components.layouts import parallelism
from tests.components.report.outline import Outline
from tests.recipes.compositions import at_home


@cache
def planned(name: str, *words: str) -> tuple[Plan, Picture]:
    plan = plan_recipe(at_home(name, *words))
    return plan, picture_of(plan)


def read(result: Plan, picture: Picture, folder: Path) -> Outline:
    document = plan_page.plan_document(result, picture, why="why not?")
    return Outline(write_document(document, folder / "plan.html", "x.js").read_text("utf-8"))


def numbers_in(tree: Any) -> list[float]:
    if isinstance(tree, dict):
        return [number for item in tree.values() for number in numbers_in(item)]
    if isinstance(tree, list):
        return [number for item in tree for number in numbers_in(item)]
    return [tree] if isinstance(tree, int | float) else []


def test_every_number_of_the_plan_is_in_the_page(tmp_path: Path) -> None:
    result, picture = planned("teuken7b")
    page, tree = read(result, picture, tmp_path), result.as_json()
    assert json.loads(page.code) == tree
    figures = numbers_in([tree[key] for key in ("memory", "time", "bill", "layout")])
    assert len(figures) > 60
    assert all(re.search(rf"(?<![\d.]){re.escape(repr(n))}\b", page.code) for n in figures)


def test_the_main_figures_are_visible_without_unfolding(tmp_path: Path) -> None:
    result, picture = planned("teuken7b")
    page, tree = read(result, picture, tmp_path), result.as_json()
    text = page.text.replace(page.code, "")
    time, bill, memory = tree["time"], tree["bill"], tree["memory"]
    for figure in (
        f"{time['step_seconds']:.3g} s",
        f"expected between {time['step_seconds_low']:.3g} and {time['step_seconds_high']:.3g}",
        f"{time['tokens_per_second_per_device']:,.1f} per device",
        *(f"{time[key]:.1%}" for key in ("mfu_full", "mfu_causal", "hfu")),
        *(f"{seconds:.3g} s" for seconds in time["parts"].values()),
        f"{round(bill['device_hours'], -2):,.0f}",  # four digits of some 800,000
        f"{bill['site_units']:,.0f} {bill['site_unit']}",
        f"{bill['energy_kwh']:,.0f} kWh of the devices",
        f"{bill['days']:.3g}",
        f"{bill['jobs']} jobs of {bill['queue']}",
        f"{memory['peak_bytes'] / 2**30:.1f} GiB",
        *(f"{stage['peak_bytes'] / 2**30:.2f}" for stage in memory["by_stage"]),
        "6,000,000,000,000",
        tree["assumed"]["warmup_tokens"]["reason"],
        tree["missing"][0]["remedy"],
        "(d1t1p1)",
        "why not?",
    ):
        assert figure in text, figure


def test_without_a_pipeline_the_page_has_no_timeline(tmp_path: Path) -> None:
    text = read(*planned("playbook1b"), tmp_path).text
    assert "Timeline" not in text
    assert "Layout" in text


def test_an_unpredicted_step_has_a_note(tmp_path: Path) -> None:
    unmeasured = planned("bloom1b7", "cluster.hardware.gemm_teraflops={}")
    text = read(*unmeasured, tmp_path).text
    assert "not predicted: see Missing" in text
    assert "Timeline" not in text
    assert "gemm_teraflops.float16" in text


def test_a_layout_that_does_not_fit_has_a_warning(tmp_path: Path) -> None:
    result, picture = planned("playbook469b", "parallelism.sequence_parallel=false")
    assert result.memory.memory_verdict == "does_not_fit"
    page = read(result, picture, tmp_path)
    assert '<p class="warning">does not fit</p>' in page.html


def drawn(pipeline: int, microbatches: int) -> Timeline:
    listed = list_actions(parallelism(pipeline=pipeline), microbatches)
    return simulate_step(listed, [PassSeconds(forward=1.0, backward=2.0)] * pipeline)


def test_the_chart_has_a_bar_at_the_time_of_every_pass() -> None:
    timeline = drawn(2, 3)
    bars = {
        (trace.name, rank, number): (base, width)
        for trace in plan_page.timeline_figure(timeline).data
        for rank, base, width, (number, _, _) in zip(
            trace.y, trace.base, trace.x, trace.customdata, strict=True
        )
    }
    assert len(bars) == 2 * 2 * 3
    assert bars["forward", 1, 0] == (1.0, 1.0)
    assert bars["backward", 0, 2] == (10.0, 2.0)
    assert timeline.total_seconds == 12.0


def test_a_chart_of_too_many_passes_omits_the_middle() -> None:
    assert plan_page.cut_microbatches(drawn(4, 64)) is None
    timeline = drawn(32, 512)
    assert len(plan_page.drawn_blocks(timeline)) <= plan_page.MOST_BLOCKS
    assert plan_page.cut_microbatches(timeline) == (78, 433)


def test_the_memory_chart_adds_up_to_the_peaks() -> None:
    memory = planned("teuken7b")[0].memory
    nothing = dict.fromkeys(("earlier_gradients", "casts", "activations", "loss"), 0.0)
    stepping = RankMemory(
        states=States(weights=2.0**30, gradients=0.0, master=0.0, optimizer=0.0),
        update=UpdateBytes(gradients=0.0, step=2.0**29),
        **nothing, buffers=0.0, base=0.0,
    )  # fmt: skip
    figure = plan_page.memory_figure(replace(memory, ranks=(*memory.ranks, stepping)))
    sums = [sum(trace.x[rank] for trace in figure.data) for rank in range(3)]
    peaks = [stage["peak_bytes"] / 2**30 for stage in memory.by_stage]
    assert sums == pytest.approx([*peaks, 1.5], rel=1e-5)


@pytest.mark.parametrize("name", ["teuken7b", "mula7b_a1b", "gpt20b", "bloom176b"])
def test_the_columns_of_the_memory_table_add_up_to_the_peak(name: str) -> None:
    sheet = memory_sheet(planned(name)[0].memory)
    assert sheet.rows
    for _, *parts, peak in sheet.rows:
        rounding = 0.005 * (len(parts) + 1)
        assert sum(map(float, parts)) == pytest.approx(float(peak), abs=rounding)


def days(*words: str, **changes: Any) -> dict[str, str]:
    plan = planned(*words)[0]
    assert plan.cost_estimate is not None
    now = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    return dict(bill_rows(plan.cost_estimate.model_copy(update=changes), now))


def test_known_parts_of_the_days_have_a_row() -> None:
    rows = days("bloom176b")
    assert rows["days, without waiting"].endswith(" jobs of qos_gpu_a100-t3")
    assert rows["  steps"].endswith(", 95,000 steps")
    assert rows["  stalls for checkpoints"].endswith(", 872 of them")
    assert rows["  evaluations"].endswith(", 89 of them")
    assert rows["  failures"].endswith(" failures")
    assert "2,467 GB each; best " in rows["checkpoints every"]
    assert "checkpoint.every_tokens=29_" in rows["checkpoints every"]
    rows = days("playbook1b")
    assert not rows.keys() & {"  failures", "waiting in queues"}
    assert "best" not in rows["checkpoints every"]
    assert "jobs" not in rows["days, without waiting"]


def test_the_end_of_a_run_includes_waiting() -> None:
    rows = days("bloom176b", days=10.0, waiting_days=0.0)
    assert rows["finish if started now"] == "2026-01-11 12:00"
    rows = days("bloom176b", days=10.0, waiting_days=2.5)
    assert rows["waiting in queues"] == "2.5 days"
    assert rows["finish if started now"] == "2026-01-14 00:00"
