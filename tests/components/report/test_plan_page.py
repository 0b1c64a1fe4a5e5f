"""The page of a plan: whole, offline, and with every number of the plan."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from components.errors import RecipeError
from components.planner.memory import RankMemory
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from components.planner.schedule import list_actions
from components.planner.states import States, UpdateBytes
from components.planner.timeline import PassSeconds, Timeline, simulate_step
from components.report.document import write_document
from components.report.plan_page import (
    MOST_BLOCKS,
    cut_microbatches,
    drawn_blocks,
    memory_figure,
    plan_document,
    timeline_figure,
)
from components.report.plan_tables import Picture, memory_sheet, picture_of
from tests.components.layouts import parallelism
from tests.recipes.compositions import at_home


class Reader(HTMLParser):
    """Collect what a reader sees, what scripts get, and what would be fetched."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = self.code = self.inside = ""
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.tags.append(tag)
        self.links += [value for key, value in attrs if key in {"src", "href", "action"}]

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "code":
            self.code += data
        elif self.inside not in {"script", "style"}:
            self.text += f"{data} "


def planned(name: str, *words: str) -> tuple[Plan, Picture]:
    recipe = at_home(name, *words)
    plan = plan_recipe(recipe)
    return plan, picture_of(plan)


def read(result: Plan, picture: Picture, folder: Path) -> Reader:
    file = write_document(plan_document(result, picture, why="why not?"), folder / "plan.html")
    return Reader(file.read_text("utf-8"))


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


def test_the_main_figures_can_be_read_without_opening_anything(tmp_path: Path) -> None:
    result, picture = planned("teuken7b")
    text, tree = read(result, picture, tmp_path).text, result.as_json()
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


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    page = read(*planned("teuken7b"), tmp_path)
    assert all(str(link).startswith("#") for link in page.links)  # its own contents
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert (tmp_path / "plan.html").stat().st_size < 6_000_000


def test_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    result, picture = planned("playbook3b")
    recipe = result.recipe.model_copy(update={"name": "</script><img src=x>"})
    named = replace(result, recipe=recipe)
    page = read(named, picture, tmp_path)
    assert "img" not in page.tags
    assert "</script><img src=x>" in page.text


def test_without_a_pipeline_the_page_has_no_timeline(tmp_path: Path) -> None:
    text = read(*planned("playbook1b"), tmp_path).text
    assert "Timeline" not in text
    assert "Layout" in text


def test_a_step_that_is_not_predicted_says_so(tmp_path: Path) -> None:
    unmeasured = planned("bloom1b7", "cluster.hardware.gemm_teraflops={}")
    text = read(*unmeasured, tmp_path).text
    assert "not predicted: see Missing" in text
    assert "Timeline" not in text
    assert "gemm_teraflops.float16" in text


def test_what_does_not_fit_is_a_warning(tmp_path: Path) -> None:
    result, picture = planned("playbook469b", "parallelism.sequence_parallel=false")
    assert result.memory.memory_verdict == "does_not_fit"
    assert '<p class="warning">does not fit</p>' in write_document(
        plan_document(result, picture, why=""), tmp_path / "plan.html"
    ).read_text("utf-8")


def test_refuses_a_folder_as_destination(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is a folder"):
        write_document(plan_document(*planned("teuken7b"), why=""), tmp_path)


def drawn(pipeline: int, microbatches: int) -> Timeline:
    listed = list_actions(parallelism(pipeline=pipeline), microbatches)
    return simulate_step(listed, [PassSeconds(forward=1.0, backward=2.0)] * pipeline)


def test_the_chart_has_a_bar_for_every_pass_where_it_happens() -> None:
    timeline = drawn(2, 3)
    bars = {
        (trace.name, rank, number): (base, width)
        for trace in timeline_figure(timeline).data
        for rank, base, width, (number, _, _) in zip(
            trace.y, trace.base, trace.x, trace.customdata, strict=True
        )
    }
    assert len(bars) == 2 * 2 * 3
    assert bars["forward", 1, 0] == (1.0, 1.0)
    assert bars["backward", 0, 2] == (10.0, 2.0)
    assert timeline.total_seconds == 12.0


def test_a_chart_of_too_many_passes_leaves_out_those_in_the_middle() -> None:
    assert cut_microbatches(drawn(4, 64)) is None
    timeline = drawn(32, 512)
    assert len(drawn_blocks(timeline)) <= MOST_BLOCKS
    assert cut_microbatches(timeline) == (78, 433)


def test_the_memory_chart_adds_up_to_the_peaks() -> None:
    memory = planned("teuken7b")[0].memory
    stepping = RankMemory(
        states=States(weights=2.0**30, gradients=0.0, master=0.0, optimizer=0.0),
        earlier_gradients=0.0,
        casts=0.0,
        activations=0.0,
        loss=0.0,
        buffers=0.0,
        update=UpdateBytes(gradients=0.0, step=2.0**29),
        base=0.0,
    )
    figure = memory_figure(replace(memory, ranks=(*memory.ranks, stepping)))
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
