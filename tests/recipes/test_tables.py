"""The page of tables has the stored plans and results, and reasons for deviations."""

import json
from typing import Any

import pytest

from benchmarks.ledger import tables
from benchmarks.ledger.tables import (
    MOST_DEVIATION,
    PAGE,
    STORED,
    WRITER,
    list_rows,
    read_figures,
    render_page,
)
from command.arguments import ROOT

LISTED = tables.read_works()
ROWS = list_rows(LISTED)
KINDS = {"exact", "planned", "miniature", "at full size", "input", "formula", "none"}
WORKS = {file.stem for file in (ROOT / "works").glob("*.bib")}


def stored_plans() -> Any:
    return json.loads(STORED.read_text("utf-8"))["studies"]


def test_the_page_has_the_stored_plans() -> None:
    text = PAGE.read_text("utf-8")
    assert render_page(text) == text, f"run {WRITER}"


def test_the_works_are_the_citations_of_recipes() -> None:
    """The second work of Teuken-7B is listed with the first."""
    assert {*LISTED} == WORKS - {"opengptx_hpc"}


def test_every_shipped_study_is_listed() -> None:
    files = (ROOT / "studies").glob("*.yaml")
    # A ladder does not reproduce a work.
    studies = {file.stem for file in files if "\nladder:" not in file.read_text("utf-8")}
    assert studies == {row["study"] for row in ROWS if "study" in row}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['place']}, {row['shows']}")
def test_a_row_with_a_large_deviation_or_without_a_figure_has_a_reason(row):
    figures = read_figures(row, stored_plans())
    assert tables.kind_of(row, figures) in KINDS
    deviates = figures.worst is not None and abs(figures.worst) > MOST_DEVIATION
    lacks = len(figures.deviations) < figures.published or not figures.published
    assert row.get("why") or not (deviates or lacks)


def test_stored_figures_are_read_from_their_files() -> None:
    row = {"results": [{"file": "tables.json", "path": ["studies", "mula_weak", "published"],
                     "text": "{} points"}]}  # fmt: skip
    assert read_figures(row, {}).unmatched == [
        f"{stored_plans()['mula_weak']['published']} points"
    ]


@pytest.mark.long
def test_the_stored_plans_of_studies_are_current() -> None:
    assert tables.plan_studies() == stored_plans(), f"run {WRITER} plan"
