"""Page of the tested versions of torch, from the rows of `versions`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.generated_section import replace_section, table_line
from benchmarks.results_store import ROOT
from components.versions import LOCKED, PYTHON, TORCH

PAGE = ROOT / "docs" / "versions.md"
# Relative, in float32: releases sum the same numbers in different orders.
MOST_DIFFERENCE = 1e-5

VersionRow = Mapping[str, Any]


def write_page(rows: Sequence[VersionRow]) -> None:
    """Replace the table of the page by the table of all rows."""
    text = PAGE.read_text("utf-8")
    page = replace_section(text, "versions", "make versions", render_table(rows))
    PAGE.write_text(page, "utf-8")


def render_table(rows: Sequence[VersionRow]) -> str:
    """Return the supported range and a table of the rows, sorted by version."""
    heads = "Torch", "Python", "Trains", "Resumes", f"Resumes from {LOCKED}", "Parity", "Tests"
    lines = [heads, ("---",) * 2 + ("---:",) * 5, *map(row_cells, sorted(rows, key=sort_key))]
    body = "".join(map(table_line, lines))
    return f"\n**{TORCH}, {PYTHON}**\n\n{body}\n{''.join(failure_lines(rows))}"


def sort_key(row: VersionRow) -> tuple[int, ...]:
    """Return the sort key of a row: torch, then Python."""
    torch, _, python = row["name"].partition("-py")
    return tuple(int(part) for part in (*torch.split("."), *python.split(".")))


def row_cells(row: VersionRow) -> tuple[str, ...]:
    """Return the cells of a row."""
    return (
        *(row["versions"][name] for name in ("torch", "python")),
        *(_cell(row, name, _describe_difference) for name in ("train", "resume", "moved")),
        _cell(row, "parity", _describe_parity),
        _cell(row, "tests", _describe_tests),
    )


def _cell(row: VersionRow, name: str, describe: Callable[[Any], str]) -> str:
    if name not in row:
        return "-"
    return "FAILS" if is_error(row[name]) else describe(row[name])


def _describe_difference(difference: float) -> str:
    return "equal" if difference == 0.0 else f"{difference:.0e}"


def _describe_parity(proofs: Sequence[VersionRow]) -> str:
    worst = max(proof[part] for proof in proofs for part in ("loss", "gradient", "weight"))
    return f"{worst:.0e}" + ("" if all(proof["holds"] for proof in proofs) else " FAILS")


def _describe_tests(tests: VersionRow) -> str:
    return f"{tests['passed']:,} passed, {tests['skipped']} skipped, {tests['failed']} failed"


def is_error(finding: Any) -> bool:
    """Return whether a check ended with an error instead of a finding."""
    return isinstance(finding, Mapping) and "error" in finding


def failure_lines(rows: Sequence[VersionRow]) -> Iterator[str]:
    """Yield a line per failed test."""
    for row in sorted(rows, key=sort_key):
        for name in row.get("tests", {}).get("failures", []):
            yield f"- {row['name']}: `{name}` fails\n"


def has_passed(row: VersionRow) -> bool:
    """Return whether all checks of a row passed."""
    if any(map(is_error, row.values())):
        return False
    return (
        row.get("train", 0.0) <= MOST_DIFFERENCE
        and row.get("resume", 0.0) == 0.0
        and row.get("moved", 0.0) <= MOST_DIFFERENCE
        and all(proof["holds"] for proof in row.get("parity", []))
        and row.get("tests", {"failed": 0})["failed"] == 0
    )
