"""The speed page says what is kept, what was asked for, and first what was not reached."""

import ast
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kept import RESULTS, circumstances
from benchmarks.marked import split_marked
from benchmarks.speed import page as speed_page
from benchmarks.speed import results, wanted
from benchmarks.speed.claims import Axis, Claim, ClaimFinding, read_claims, read_findings
from benchmarks.speed.figures import SpeedFigure, SpeedRow, at_least, at_most, number
from benchmarks.speed.results import circumstances_of, merged, read_result
from command.arguments import ROOT

SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))
# Their rows are stamped with a recipe's fingerprint, or rehearse and compare no speed.
NO_SPEED = {"chaos", "dryruns", "local_copies", "masters", "miniatures", "parity"}
NO_SPEED |= {"law_coverage", "muon", "mup", "new_recipes", "studies", "tables", "versions"}


@pytest.fixture(scope="module")
def findings() -> list[ClaimFinding]:
    return read_findings()


def kept(stem: str) -> Any:
    return json.loads((RESULTS / f"{stem}.json").read_text("utf-8"))


def section(page: str, title: str) -> str:
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


def finding_of(*rows: SpeedRow, **axis: Any) -> ClaimFinding:
    claim = Claim(
        key="made",
        title="Made",
        script="x",
        says="",
        beside="",
        axis=Axis(title="ratio", **({"peer": "the peer"} | axis)),
        cases=[],
    )
    return ClaimFinding(claim=claim, rows=rows, says="", after="", result={})


def found(key: str, result: Any) -> ClaimFinding:
    (claim,) = (claim for claim in read_claims() if claim.key == key)
    return claim.found(result)


def digits(value: float) -> str:
    """Write three digits by Python's own rule, which keeps zeros only where it is told to."""
    return f"{value:#.3g}".rstrip(".")


def test_the_page_is_what_the_kept_results_give(findings: list[ClaimFinding]) -> None:
    page = speed_page.PAGE.read_text("utf-8")
    assert speed_page.render(findings, page) == page, f"`{speed_page.WRITER}` writes it"


def test_every_kept_result_of_speed_has_its_claim(findings: list[ClaimFinding]) -> None:
    places = [one.claim.kept_in for one in findings]
    speaking = {Path(place).stem for place in places if "results" in place}
    every = {file.stem for file in RESULTS.glob("*.json")} - NO_SPEED - {"measured"}
    assert len(every) > 10
    assert speaking == every


def test_figures_stand_on_the_page_as_the_results_have_them() -> None:
    page = speed_page.PAGE.read_text("utf-8")
    for seconds in kept("whole_run")["first_step_seconds"]:
        assert f"{digits(seconds)} s" in section(page, "The whole run")
    for size in kept("moe")["sizes"]:
        row = re.search(rf"\| {size['tokens']:,} tokens \|.*", page)
        assert row is not None
        ratio = size["ratio_median"]["transformers, grouped_mm"]
        assert digits(ratio) in row.group()
    ratio = kept("data_prep")["bpe_bloom"]["ratio_by_processor_seconds"]["datatrove"]
    assert digits(ratio) in section(page, "Tokenising")


def test_what_is_not_reached_stands_before_every_claim_and_again_in_its_table() -> None:
    page = speed_page.PAGE.read_text("utf-8")
    middle = statistics.median(kept("whole_run")["first_step_seconds"])
    late = middle > wanted.MOST_FIRST_SECONDS
    told = f"**{digits(middle)} s**, wanted at most {wanted.MOST_FIRST_SECONDS:g} s."
    assert (told in page.partition("\n## ")[0]) == late
    lines = section(page, "The whole run").splitlines()
    (row,) = (line for line in lines if "the median |" in line)
    assert ("**not reached**" in row) == late


def test_a_slower_result_turns_the_verdict() -> None:
    result = kept("train_step")
    pair = "ours / transformers"
    verdicts = []
    for ratio in (0.99, 1.0):
        result["ratio_median"][pair] = ratio
        missed = [words for words, _ in found("dense_step", result).misses()]
        verdicts.append(f"{pair}, medians" in missed)
    assert verdicts == [True, False]


def test_an_interval_is_judged_by_the_end_that_was_asked_for() -> None:
    result = kept("guards")
    result["paired_ratio"] = {"median": 0.99, "low": 0.97, "high": wanted.MOST_GUARDED + 0.001}
    assert [words for words, _ in found("guards", result).misses()] == ["a guarded step"]
    figure = SpeedFigure(value=1.1, low=0.99, high=1.2, wanted=at_most(1.0, end="low"))
    assert figure.met
    assert not SpeedFigure(value=1.1, low=1.01, high=1.2, wanted=at_most(1.0, end="low")).met


def test_a_figure_that_not_every_result_has_is_shown_where_it_is_kept() -> None:
    result = kept("moe")
    for size in result["sizes"]:
        size["ratio_median"].pop("ours, compiled", None)
    assert "our compiled block" not in found("experts", result).series
    result["sizes"][0]["ratio_median"]["ours, compiled"] = 0.9
    finding = found("experts", result)
    assert finding.rows[0].figures["our compiled block"].value == 0.9
    assert set(finding.rows[1].figures) < set(finding.rows[0].figures)


def test_a_figure_that_a_result_lacks_is_an_error() -> None:
    result = kept("moe")
    del result["sizes"][0]["ratio_median"]["ours, loop"]
    with pytest.raises(KeyError, match="ours, loop"):
        found("experts", result)


def test_units_scale_a_figure_and_its_bound_alike() -> None:
    result = kept("whole_run") | {"outside_fraction": wanted.MOST_OUTSIDE + 0.001}
    missed = dict(found("whole_run", result).misses())
    figure = missed["between the steps, of the run's time"]
    assert figure.told == "3.10 %"
    assert figure.wanted is not None
    assert figure.wanted.told(figure.unit) == "at most 3 %"


def test_what_the_peer_betters_is_told_though_nothing_was_asked() -> None:
    rows = [
        SpeedRow(
            label="asked", figures={"found": SpeedFigure(value=0.4, wanted=at_least(0.3))}
        ),
        SpeedRow(label="slow", figures={"found": SpeedFigure(value=0.9)}),
        SpeedRow(label="slower", figures={"found": SpeedFigure(value=0.5)}),
        SpeedRow(label="quick", figures={"found": SpeedFigure(value=2.0)}),
    ]
    said = "- [Made](#made): 2 of 4 figures, at the worst slower: 0.500.\n"
    assert said in speed_page.summary([finding_of(*rows, better="more")])
    less = speed_page.summary([finding_of(*rows, better="less")])
    assert "- [Made](#made): 1 of 4 figures, at the worst quick: 2.00.\n" in less
    for axis in ({}, {"better": "more", "peer": None}):
        assert speed_page.BEHIND not in speed_page.summary([finding_of(*rows, **axis)])


def test_each_claim_names_a_command_that_its_script_explains(
    findings: list[ClaimFinding],
) -> None:
    page = speed_page.PAGE.read_text("utf-8")
    assert "python -m benchmarks.training.guards recipe=NAME [key=value ...], kept in" in page
    for finding in findings:
        words = speed_page.usage(finding.claim.script).split()
        assert words[:2] == ["python", "-m"]
        assert words[2].rpartition(".")[2] == finding.claim.script


def test_make_measures_every_claim_anew(findings: list[ClaimFinding]) -> None:
    lines = (ROOT / "Makefile").read_text("utf-8").splitlines()
    run = {line.split()[2].rpartition(".")[2] for line in lines if "-m benchmarks." in line}
    assert {one.claim.script for one in findings} <= run


def test_bounds_themselves_are_met() -> None:
    assert SpeedFigure(value=1.15, wanted=at_least(1.15)).met
    assert SpeedFigure(value=12.0, wanted=at_most(12.0)).met
    assert not SpeedFigure(value=12.1, wanted=at_most(12.0)).met
    assert SpeedFigure(value=9e9).met


def test_a_page_without_a_miss_names_none() -> None:
    fine = finding_of(
        SpeedRow(label="a", figures={"found": SpeedFigure(value=2.0, wanted=at_least(1.0))})
    )
    text = speed_page.summary([fine])
    assert "Of 1 figures of which something was asked, 1 reach it.\n" in text
    assert "do not" not in text


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0.00"), (0.99961, "1.00"), (0.04319, "0.0432"), (1.1, "1.10"), (24.06, "24.1"),
     (999.6, "1,000"), (4372.1, "4,372"), (0.0999999, "0.100")],
)  # fmt: skip
def test_numbers_have_three_digits_and_drop_none(value: float, told: str) -> None:
    assert number(value) == told


def test_a_result_that_says_less_of_itself_is_shown_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, missing = circumstances_of({
        "torch": "2.13.0",
        "rounds": 7,
        "processor": "p",
        "cores": 2,
    })
    assert told == {
        "shape": "rounds 7",
        "machine": "processor p, cores 2",
        "versions": "torch 2.13.0",
    }
    assert missing == ["peer", "convention", "date"]
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert read_result("worlds") is None


def test_what_a_benchmark_says_of_itself_is_all_that_the_page_asks() -> None:
    said = circumstances(
        peer="a peer", convention="seconds", shape={"dim": 8}, packages=["torch"]
    )
    told, missing = circumstances_of(json.loads(json.dumps(said)))
    assert missing == []
    assert told["shape"] == "dim 8"
    assert "torch 2." in told["versions"]


def test_parts_of_a_file_have_a_date_each() -> None:
    part = {"convention": "seconds", "peer": "p"}
    parts = {"a": part | {"date": "2026-01-01"}, "b": part | {"date": "2026-02-02"}}
    assert merged(parts, {})["date"] == {"a": "2026-01-01", "b": "2026-02-02"}
    whole = {"convention": "of before"}
    assert merged({"a": {"ratio": 1}}, whole) == whole


def test_every_benchmark_that_keeps_a_result_says_beside_whom_and_how() -> None:
    keeping = {}
    for script in SCRIPTS:
        tree = ast.parse(script.read_text("utf-8"))
        calls = {node.func.id for node in ast.walk(tree)
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if "RESULT" in named and script.stem not in NO_SPEED:
            keeping[script.stem] = bool(calls & {"circumstances", "compare_steps"})
    assert len(keeping) > 12
    assert [stem for stem, says in keeping.items() if not says] == []


def test_a_page_without_its_marks_is_not_written_over() -> None:
    with pytest.raises(AssertionError, match="no mark for claims"):
        split_marked("text", "claims", "writer")
    with pytest.raises(AssertionError, match="no end of claims"):
        split_marked("<!-- claims: written by `writer` -->\n", "claims", "writer")
