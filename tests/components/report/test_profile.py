"""Profiles in the report: the time of each part."""

import json
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.report.html import render_document
from components.report.measurements import profile_grid
from components.report.outcome import load_entries
from components.report.page import report_document

PROFILE = {
    "steps": [5, 6],
    "clock": "device",
    "step_seconds": 1.25,
    "parts": {
        "products": {"seconds": 1.0, "backward_seconds": 0.75, "forward_seconds": 0.25},
        "loss": {"seconds": 0.0},
        "host": {"seconds": 0.25},
    },
}


def profiled(run: Path, rank: int) -> None:
    (run / "profile").mkdir(exist_ok=True)
    tree = {"rank": rank, **PROFILE}
    (run / f"profile/rank-{rank}.json").write_text(json.dumps(tree))


def test_the_tables_have_rank_by_rank_what_took_time(write_run) -> None:
    run = write_run("a")
    for rank in (10, 2):
        profiled(run, rank)
    (run / "profile/rank-2.trace.json.gz").write_bytes(b"")
    parts = profile_grid(load_entries([run])).rows
    assert parts[:3] == [
        ("2", "products", "1 s", "80.0%", "250 ms", "750 ms", ""),
        ("2", "host", "250 ms", "20.0%", "", "", ""),
        ("2", "step", "1.25 s", "100.0%", "", "", ""),
    ]
    assert [cells[0] for cells in parts[3:]] == ["10"] * 3


def test_of_several_runs_each_row_says_whose_it_is(write_run) -> None:
    runs = [write_run(name) for name in ("a", "b")]
    for run in runs:
        profiled(run, 0)
    grid = profile_grid(load_entries(runs))
    assert grid.columns[:3] == ("run", "rank", "part")
    assert [row[:2] for row in grid.rows] == [("a", "0")] * 3 + [("b", "0")] * 3
    assert grid.text_columns == 3


def test_the_page_has_the_section_only_where_something_was_profiled(write_run) -> None:
    run, other = write_run("a"), write_run("b")
    profiled(run, 0)
    page = render_document(report_document(load_entries([run, other])))
    assert "<h2>Profile</h2>" in page
    assert "<h2>Profile</h2>" not in render_document(report_document(load_entries([other])))


def test_a_profile_that_is_cut_off_names_its_file(write_run) -> None:
    run = write_run("a")
    (run / "profile").mkdir()
    (run / "profile/rank-0.json").write_text('{"rank"')
    with pytest.raises(RecipeError, match=r"rank-0\.json: is not JSON(.|\n)*profile again"):
        profile_grid(load_entries([run]))
