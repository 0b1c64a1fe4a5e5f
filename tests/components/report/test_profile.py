"""Profiles in the report: parts, products against the machine, waits."""

import json
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.report.document import as_html
from components.report.measurements import profile_grids
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
    "products": {
        "products": {
            "flops": 3e12, "bytes": 1e9, "flops_per_byte": 3_000.0, "product_seconds": 0.5,
            "flops_per_second": 6e12, "limit_flops_per_second": 8e12, "limit_fraction": 0.75,
        },
        "attention": {
            "flops": 2e9, "bytes": 1e9, "flops_per_byte": 2.0, "product_seconds": 0.0,
            "flops_per_second": None,
        },
    },
    "waits": [
        {
            "call": "aten::nonzero", "part": "gradients", "direction": "", "times": 2.0,
            "seconds": 0.004, "line": "components/x.py(3): <lambda>",
        }
    ],
}  # fmt: skip


def profiled(run: Path, rank: int) -> None:
    (run / "profile").mkdir(exist_ok=True)
    tree = {"rank": rank, **PROFILE}
    (run / f"profile/rank-{rank}.json").write_text(json.dumps(tree))


def test_the_tables_have_rank_by_rank_what_took_time(write_run) -> None:
    run = write_run("a")
    for rank in (10, 2):
        profiled(run, rank)
    (run / "profile/rank-2.trace.json.gz").write_bytes(b"")
    grids = profile_grids(load_entries([run]))
    parts = grids["profile_parts"].rows
    assert parts[:3] == [
        ("2", "products", "1 s", "80.0%", "250 ms", "750 ms", ""),
        ("2", "host", "250 ms", "20.0%", "", "", ""),
        ("2", "step", "1.25 s", "100.0%", "", "", ""),
    ]
    assert [cells[0] for cells in parts[3:]] == ["10"] * 3
    assert [row[1:] for row in grids["profile_products"].rows[:2]] == [
        ("products", "3.00 TFLOP", "6.00 TFLOP/s", "3,000", "8.00 TFLOP/s", "75.0%"),
        ("attention", "2.00 GFLOP", "—", "2", "—", "—"),
    ]
    line = "components/x.py(3): <lambda>"
    assert grids["profile_waits"].rows[0][1:] == (
        *("aten::nonzero", "gradients", "", "2", "4 ms", line),
    )


def test_of_several_runs_each_row_says_whose_it_is(write_run) -> None:
    runs = [write_run(name) for name in ("a", "b")]
    for run in runs:
        profiled(run, 0)
    grid = profile_grids(load_entries(runs))["profile_parts"]
    assert grid.columns[:3] == ("run", "rank", "part")
    assert [row[:2] for row in grid.rows] == [("a", "0")] * 3 + [("b", "0")] * 3
    assert grid.text_columns == 3


def test_the_page_has_the_section_only_where_something_was_profiled(write_run) -> None:
    run, other = write_run("a"), write_run("b")
    profiled(run, 0)
    page = as_html(report_document(load_entries([run, other])))
    assert "<h2>Profile</h2>" in page
    assert "components/x.py(3): &lt;lambda&gt;" in page
    assert "<h2>Profile</h2>" not in as_html(report_document(load_entries([other])))


def test_a_profile_that_is_cut_off_names_its_file(write_run) -> None:
    run = write_run("a")
    (run / "profile").mkdir()
    (run / "profile/rank-0.json").write_text('{"rank"')
    with pytest.raises(RecipeError, match=r"rank-0\.json: is not JSON(.|\n)*profile again"):
        profile_grids(load_entries([run]))
