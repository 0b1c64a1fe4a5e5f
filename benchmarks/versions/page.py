"""The page of what was tried under which torch, from the rows of `versions`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.kept import ROOT
from components.versions import LOCKED, PYTHON, TORCH

PAGE = ROOT / "docs" / "versions.md"
# Relative, in float32: releases add the same numbers up in another order.
MOST_APART = 1e-5
BEGIN, END = "<!-- versions: written by `make versions` -->\n", "<!-- end of versions -->\n"

Row = Mapping[str, Any]


def write_page(rows: Sequence[Row]) -> None:
    """Put the table of all rows into the page, between its marks."""
    text = PAGE.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{table(rows)}{END}{tail}", "utf-8")


def table(rows: Sequence[Row]) -> str:
    """Lay out the rows by version, the range above them."""
    heads = "Torch", "Python", "Trains", "Resumes", f"Resumes from {LOCKED}", "Parity", "Tests"
    lines = [heads, ("---",) * 2 + ("---:",) * 5, *map(cells, sorted(rows, key=release))]
    said = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"\n**{TORCH}, {PYTHON}**\n\n{said}\n{''.join(failures(rows))}"


def release(row: Row) -> tuple[int, ...]:
    """Order rows by torch, then by Python."""
    torch, _, python = row["name"].partition("-py")
    return tuple(int(part) for part in (*torch.split("."), *python.split(".")))


def cells(row: Row) -> tuple[str, ...]:
    """Write a line of the table."""
    return (
        *(row["versions"][name] for name in ("torch", "python")),
        *(_cell(row, name, _difference) for name in ("train", "resume", "moved")),
        _cell(row, "parity", _parity),
        _cell(row, "tests", _tests),
    )


def _cell(row: Row, name: str, say: Callable[[Any], str]) -> str:
    if name not in row:
        return "-"
    return "FAILS" if is_error(row[name]) else say(row[name])


def _difference(apart: float) -> str:
    return "equal" if apart == 0.0 else f"{apart:.0e}"


def _parity(proofs: Sequence[Row]) -> str:
    worst = max(proof[part] for proof in proofs for part in ("loss", "gradient", "weight"))
    return f"{worst:.0e}" + ("" if all(proof["holds"] for proof in proofs) else " FAILS")


def _tests(tests: Row) -> str:
    return f"{tests['passed']:,} passed, {tests['skipped']} skipped, {tests['failed']} failed"


def is_error(found: Any) -> bool:
    """Whether a check ended in an error instead of a finding."""
    return isinstance(found, Mapping) and "error" in found


def failures(rows: Sequence[Row]) -> Iterator[str]:
    """Name the tests that fail."""
    for row in sorted(rows, key=release):
        for name in row.get("tests", {}).get("failures", []):
            yield f"- {row['name']}: `{name}` fails\n"


def holds(row: Row) -> bool:
    """Whether all that was tried is as the page promises."""
    if any(map(is_error, row.values())):
        return False
    return (
        row.get("train", 0.0) <= MOST_APART
        and row.get("resume", 0.0) == 0.0
        and row.get("moved", 0.0) <= MOST_APART
        and all(proof["holds"] for proof in row.get("parity", []))
        and row.get("tests", {"failed": 0})["failed"] == 0
    )
