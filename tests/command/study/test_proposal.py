"""Proposals, ``action=plan file=NAME.md``: every row is the plan's or the recipe's."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.planner.plan import plan_recipe
from components.report.document import (
    ReportDocument,
    ReportSection,
    as_markdown,
    write_document,
)
from components.report.proposal import build_proposal
from components.report.tables import Grid
from tests.command.study.test_ladder import PREDICT, ladder

__all__ = ["ladder"]  # the fixture: finished runs of a planted law
WORDS = ("recipe=teuken7b", "cluster=juwels")
ROW = re.compile(r"^\| (\S.*?) \| (.*?) \| (.*) \|$", re.M)


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Give value and source by item: the first of a name, which sections of figures have."""
    found: dict[str, tuple[str, str]] = {}
    for item, value, source in ROW.findall(text):
        found.setdefault(item, (value, source))
    return found


def number(text: str) -> float:
    found = re.search(r"[\d,.]+\d|\d", text)
    assert found is not None
    return float(found[0].replace(",", ""))


def proposed(*words: str) -> str:
    """Write a proposal, and return its text."""
    assert main(["action=plan", *words, "file=page.md"]) == 0
    return Path("page.md").read_text("utf-8")


pytestmark = pytest.mark.usefixtures("folder")


def test_rows_equal_plans_with_known_failures(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["action=plan", "output=json", *WORDS]) == 0
    plan = json.loads(capfd.readouterr().out)
    found = rows(proposed(*WORDS))
    bill, time = plan["bill"], plan["time"]
    expected, upper = (
        number(found[f"device-hours, {name}"][0]) for name in ("expected", "upper end")
    )
    assert expected == pytest.approx(bill["device_hours"], rel=1e-3)
    longest = time["step_seconds_high"] / time["step_seconds"]
    assert upper == pytest.approx(bill["device_hours"] * longest, rel=1e-3)
    names = ["steps", "stalls for checkpoints", "evaluations"]
    names.append("job starts and handovers")
    parts = [number(found[f"of these: {name}"][0]) for name in names]
    assert sum(parts) == pytest.approx(bill["device_hours"], rel=1e-3)
    assert found["of these: failures"][0] == "not known"  # the profile has no figure
    assert number(found["core-h, expected"][0]) == pytest.approx(bill["site_units"], rel=1e-3)
    energy = number(found["energy of the devices"][0])
    assert energy == pytest.approx(bill["energy_kwh"], rel=1e-3)
    assert found["parameters"][0] == "7,452,725,248"
    assert "index of the v0.4 checkpoint" in found["parameters"][1]
    said = proposed(*WORDS, "cluster.failures.node_hours_between=50000")
    assert number(rows(said)["of these: failures"][0]) > 0
    assert number(rows(said)["expected failures"][0]) == pytest.approx(3.5, abs=0.3)
    assert "These values exclude failures" not in said


def test_storage_is_tokens_checkpoints_and_weights() -> None:
    """250,680 pieces need four bytes; two checkpoints are kept while a third is written."""
    found = rows(proposed(*WORDS))
    assert found["token files, at most"][0] == "24.00 TB"
    each = number(found["one checkpoint with optimizer state"][0])
    assert found["concurrent checkpoints"][0].startswith("3: ")
    assert number(found["concurrent checkpoints"][0][3:]) == pytest.approx(3 * each, abs=0.2)
    assert number(found["final weights"][0]) == pytest.approx(14.9)
    more = ("checkpoint.keep_every_tokens=1_000_000_000_000", "checkpoint.keep_best=1")
    weights = "checkpoint.weights_every_tokens=500_000_000_000"
    found = rows(proposed(*WORDS, *more, weights, "checkpoint.copy_to=/archive"))
    assert found["concurrent checkpoints"][0].startswith("10: ")
    assert number(found["retained weights"][0]) == pytest.approx(12 * 14.905, rel=1e-3)
    assert found["copied to"][0] == "archive"  # published pages name no folder
    assert found["retained permanently"][0] == "every 1,000,000,000,000 tokens"


def test_both_forms_have_the_same_cells(folder: Path) -> None:
    recipe = compose_recipe(read_point(list(WORDS)))
    proposal = build_proposal(recipe, plan_recipe(recipe), None)
    text = as_markdown(proposal)
    page = write_document(proposal, folder / "page.html").read_text("utf-8")
    for item, (value, _) in rows(text).items():
        assert f">{item.replace(chr(92), '')}</th>" in page
        assert value.replace("\\", "").split(" ")[0] in page
    assert "<title>Computing time for teuken7b on juwels: proposal</title>" in page
    assert len(page) < 100_000  # a page without charts has no script of charts


def test_a_ladders_prediction_is_a_section(ladder: Path) -> None:
    said = proposed(*PREDICT[1:], f"run={ladder}")
    assert "## Expected loss" in said
    assert "fit of the runs of ladder" in rows(said)["loss"][1]
    assert "extrapolated: " in said


def test_an_unmeasured_machine_has_no_bill() -> None:
    recipe = compose_recipe(read_point(list(WORDS)))
    plan = replace(plan_recipe(recipe), time=None, run=None)
    found = rows(as_markdown(build_proposal(recipe, plan, None)))
    assert found["device-hours"][0] == found["one checkpoint"][0] == "not known"


def test_received_text_ends_no_table_cell() -> None:
    row = ("a|b", "<i>*c*\nd", "`e`")
    section = ReportSection("T", (Grid(columns=row, rows=(row,)),))
    empty = ReportSection("U", (Grid(columns=row),), "a caption")
    said = as_markdown(ReportDocument(kind="K", title="T", why="w", sections=(section, empty)))
    assert r"| a\|b | \<i\>\*c\* d | \`e\` |" in said
    assert "U" not in said  # an empty section is not written
