"""The page of tables says what is planned and kept, and nothing without a reason."""

import json
from typing import Any

import pytest

from benchmarks.ledger import tables
from benchmarks.ledger.tables import KEPT, MOST_APART, PAGE, WRITER, compared, page, rows_of
from command.arguments import ROOT

LISTED = tables.read_listed()
ROWS = [row for _, row in rows_of(LISTED)]
KINDS = {"exact", "planned", "miniature", "at full size", "input", "formula", "none"}
WORKS = {file.stem for file in (ROOT / "works").glob("*.bib")}


def kept() -> Any:
    return json.loads(KEPT.read_text("utf-8"))["studies"]


def test_the_page_is_what_is_kept() -> None:
    text = PAGE.read_text("utf-8")
    assert page(text) == text, f"run {WRITER}"


def test_works_are_those_that_recipes_name() -> None:
    """The second work of Teuken-7B is told with the first."""
    assert {*LISTED} == WORKS - {"opengptx_hpc"}


def test_every_shipped_study_is_listed() -> None:
    files = (ROOT / "studies").glob("*.yaml")
    # A ladder is our own, and of no work.
    studies = {file.stem for file in files if "\nladder:" not in file.read_text("utf-8")}
    assert studies == {row["study"] for row in ROWS if "study" in row}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['place']}, {row['shows']}")
def test_what_is_far_apart_or_lacks_a_figure_says_why(row: dict[str, Any]) -> None:
    figures = compared(row, kept())
    assert tables.kind_of(row, figures) in KINDS
    far = figures.worst is not None and abs(figures.worst) > MOST_APART
    lacks = len(figures.deviations) < figures.published or not figures.published
    assert row.get("why") or not (far or lacks)


def test_kept_figures_are_read_from_their_files() -> None:
    row = {"kept": [{"file": "tables.json", "at": ["studies", "mula_weak", "published"],
                     "says": "{} points"}]}  # fmt: skip
    assert compared(row, {}).told == [f"{kept()['mula_weak']['published']} points"]


@pytest.mark.long
def test_studies_plan_today_what_is_kept() -> None:
    assert tables.plan_studies() == kept(), f"run {WRITER} plan"
