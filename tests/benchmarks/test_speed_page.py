"""The speed page has the stored results, and lists missed targets first."""

import json
import re
from typing import Any

import pytest
import yaml

from benchmarks import speed
from benchmarks.generated_section import split_section
from benchmarks.ratios import Ratio
from benchmarks.results_store import CONVENTIONS, RESULTS
from command.arguments import ROOT

SCRIPTS = {file.stem: file for file in (ROOT / "benchmarks").rglob("*.py")}
# Results with the fingerprint of a recipe, and results that compare no speed.
NO_SPEED = {
    *("chaos", "dryruns", "law_coverage", "local_copies", "masters", "measured", "miniatures"),
    *("muon", "mup", "new_recipes", "parity", "primus", "studies", "tables", "versions"),
}
PAGE = f"""\
<!-- summary: written by `{speed.WRITER}` -->
<!-- end of summary -->
## Large worlds, built

<!-- worlds: written by `{speed.WRITER}` -->
<!-- end of worlds -->
"""


@pytest.fixture(scope="module")
def page() -> str:
    return speed.PAGE.read_text("utf-8")


def stored(stem: str) -> Any:
    return json.loads((RESULTS / f"{stem}.json").read_text("utf-8"))


def section(page: str, benchmark: str) -> str:
    return page.partition(f"## {speed.titles_of(page)[benchmark]}\n")[2].partition("\n## ")[0]


def rendered(*ratios: Ratio) -> str:
    return speed.render_page(PAGE, {"worlds": ratios})


def world(value: float, **fields: Any) -> Ratio:
    return Ratio("1,024 ranks", "a limit", value, at_most=30.0, **fields)


def test_the_page_has_the_stored_results(page: str) -> None:
    assert speed.render_page(page, speed.read_page_ratios(page)) == page, (
        f"`{speed.WRITER}` writes it"
    )


def test_every_stored_result_of_speed_is_on_the_page_with_its_context(page: str) -> None:
    names = {file.stem for file in RESULTS.glob("*.json")} - NO_SPEED
    assert len(names) > 10
    assert set(speed.titles_of(page)) == names | {speed.COMPUTED}
    for name in names:
        result = stored(name)
        assert {"peer", "convention", "machine", "date", "ratios"} <= set(result), name
        assert all(row["processor"] and row["date"] for row in result["ratios"]), name
        assert len(result["ratios"]) > 0, name


def test_figures_on_the_page_are_those_of_the_results(page: str) -> None:
    for size in stored("moe")["sizes"]:
        ratio = size["ratio_median"]["transformers, grouped_mm"]
        start = rf"\| {size['tokens']:,} tokens \| transformers, grouped_mm"
        assert re.search(rf"^{start} \| {ratio:.2f} \|", section(page, "moe"), re.MULTILINE)
    ratio = stored("data_prep")["bpe_bloom"]["ratio_by_processor_seconds"]["datatrove"]
    assert f"| {ratio:.1f} | at least 1 |" in section(page, "data_prep")


def test_a_missed_target_is_listed_first_and_in_its_table() -> None:
    slow = rendered(world(31.0, unit="s", processor="A"))
    top, _, table = slow.partition("## Large worlds")
    assert "1 figures have a target; 0 reach it. These do not:\n" in top
    assert "- [Large worlds, built](#large-worlds-built), 1,024 ranks" in top
    assert "**31.0 s**, target at most 30 s, A." in top
    assert "| **31.0 s** | at most 30 s: **missed** | A |" in table
    fast = rendered(world(29.0))
    assert "1 figures have a target; 1 reach it.\n" in fast
    assert "do not" not in fast
    assert "missed" not in fast


def test_rows_of_one_case_on_several_processors_are_adjacent() -> None:
    other = Ratio("2 ranks", "a limit", 1.0, processor="A")
    table = rendered(world(1.0, processor="A"), other, world(2.0, processor="B"))
    rows = re.findall(r"^\| (1,024|2) ranks .* \| (A|B) \|", table, re.MULTILINE)
    assert rows == [("1,024", "A"), ("1,024", "B"), ("2", "A")]


def test_each_section_names_the_command_of_its_script(page: str) -> None:
    for name in speed.titles_of(page):
        module = ".".join(SCRIPTS[name].relative_to(ROOT).with_suffix("").parts)
        text = SCRIPTS[name].read_text("utf-8")
        usage = re.search(rf"^    (python -m {module}\b.*)$", text, re.MULTILINE)
        assert usage is not None
        assert f"```\n{usage.group(1)}\n```\n" in section(page, name)


def test_make_runs_every_benchmark_of_the_page(page: str) -> None:
    lines = (ROOT / "Makefile").read_text("utf-8").splitlines()
    run = {line.split()[2].rpartition(".")[2] for line in lines if "-m benchmarks." in line}
    assert set(speed.titles_of(page)) <= run


def test_every_benchmark_of_the_page_has_a_peer_and_a_convention(page: str) -> None:
    conventions = yaml.safe_load(CONVENTIONS.read_text("utf-8"))
    assert {*conventions} == {*speed.titles_of(page)} - {speed.COMPUTED}
    assert all(row["peer"] and row["convention"] for row in conventions.values())


def test_a_page_without_its_sections_is_not_overwritten() -> None:
    with pytest.raises(AssertionError, match="no start of claims"):
        split_section("text", "claims", "writer")
    with pytest.raises(AssertionError, match="no end of claims"):
        split_section("<!-- claims: written by `writer` -->\n", "claims", "writer")
