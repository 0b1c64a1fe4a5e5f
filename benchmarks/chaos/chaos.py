"""Break a run in every way that can be rehearsed; it must end as if nothing had been.

    python -m benchmarks.chaos.chaos [--layout WORD] [--draw NUMBER] [--missing] [CASE ...]

A miniature trains on four gloo ranks, tensor 2 x data 2 and pipeline 2 x data 2. Each case
(`benchmarks/chaos/cases.py`) strikes at three moments that are drawn, on ranks that are drawn.
Its last weights and optimizer state must be, bit for bit, those of a run that nothing struck;
where the rule is to leave out bad data, those of a run that was told so from the start. Nobody
helps. A hang must be found within ``watchdog.step_seconds`` and two seconds more. Parts can be
run alone: their rows take the place of their likes, and the page is written from all that are
kept. Exit status 1 if one that was run does not hold.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.chaos.cases import CASES, DRAWS, LAYOUTS, Draw, check_complete, draws
from benchmarks.chaos.runs import ChaosRow, Runs, ranks_at_hand
from benchmarks.entry import enter
from benchmarks.kept import RESULTS, ROOT
from benchmarks.machine import machine

RESULT = RESULTS / "chaos.json"
PAGE = ROOT / "docs" / "fault_tolerance.md"
BEGIN, END = "<!-- chaos: written by `benchmarks.chaos.chaos` -->\n", "<!-- end of chaos -->\n"
HEAD = """
| fault | layout | before step | rank | the run | s | weights equal |
|---|---|---|---:|---|---:|---|
"""

Key = tuple[str, str, int]


def asked_for(words: Sequence[str]) -> list[Draw]:
    """Choose what is run: first one moment of everything, then the second, then the third."""
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("--layout", default="", help="the beginning of a layout's name")
    parser.add_argument("--draw", type=int, choices=range(1, DRAWS + 1), help="only this one")
    parser.add_argument("--missing", action="store_true", help="only rows that are not kept")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="the beginning of its name")
    asked = parser.parse_args(words)
    there = {key_of(row) for row in kept_rows()} if asked.missing else set()
    every = [
        draw
        for layout in LAYOUTS
        if layout.startswith(asked.layout)
        for case in CASES
        if not asked.cases or case.name.startswith(tuple(asked.cases))
        for draw in draws(layout, case)
        if asked.draw in (None, draw.number) and (layout, case.name, draw.number) not in there
    ]
    return sorted(every, key=lambda draw: draw.number)


def kept_rows() -> list[dict[str, Any]]:
    """Read what was found before."""
    rows: list[dict[str, Any]] = []
    if RESULT.exists():
        rows = json.loads(RESULT.read_text("utf-8"))["rows"]
    return rows


def key_of(row: dict[str, Any]) -> Key:
    """Tell rows apart; one that was run again takes the place of its like."""
    return row["layout"], row["case"], row["draw"]


def every_key() -> list[Key]:
    """List all rows that there may be, in the order of the page."""
    return [
        (layout, case.name, number)
        for case in CASES
        for layout in LAYOUTS
        for number in range(1, DRAWS + 1)
    ]


def keep(row: ChaosRow) -> None:
    """Put a row beside those that are kept, and the page after all of them."""
    rows = {key_of(one): one for one in [*kept_rows(), asdict(row)]}
    kept = [rows[key] for key in every_key() if key in rows]
    tree = {
        "convention": "wall clock, from the fault until its step was taken for good",
        "rows": kept,
        "machine": machine(),
        "versions": {"torch": torch.__version__},
    }
    RESULT.write_text(json.dumps(tree, indent=1) + "\n", "utf-8")
    write_page(kept)


def write_page(rows: Sequence[dict[str, Any]]) -> None:
    """Put the table of all rows into the page, between its marks."""
    text = PAGE.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{table(rows)}{END}{tail}", "utf-8")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Lay out the rows as the page has them, and what is missing."""
    missing = len(every_key()) - len(rows)
    said = f"{len(rows)} of {len(every_key())} rows, {missing} not run"
    held = sum(one["holds"] for one in rows)
    late = max((one["hang_late_seconds"] or 0.0 for one in rows), default=0.0)
    found = f"Hangs were found {late:.2f} s after their limit at the latest."
    return (
        f"{HEAD}{''.join(map(line, rows))}\n{said}; {held} hold. {found}{after_kills(rows)}\n\n"
    )


def after_kills(rows: Sequence[dict[str, Any]]) -> str:
    """Describe how soon runs went on that had lost a rank; rows of before do not know it."""
    known = [row.get("seconds_to_go_on") for row in rows if row["case"] == "kill"]
    seconds = sorted(one for one in known if one is not None)
    if not seconds:
        return ""
    spread = f"{median(seconds):.1f} s later (median; {seconds[0]:.1f} to {seconds[-1]:.1f})"
    return f" After a kill the next step was taken {spread}."


def line(row: dict[str, Any]) -> str:
    """Write one row; a run that did not end by itself says so."""
    ended = [f"exit {row['status']}"] if row["status"] else []
    seconds = "" if row["seconds_to_step"] is None else f"{row['seconds_to_step']:.1f}"
    cells = [
        *(row["case"], row["layout"], f"{row['step']}, {row['moment']}", str(row["rank"])),
        ", ".join([*row["did"], *ended]),
        *(seconds, "yes" if row["same_weights"] else "**no**"),
    ]
    return f"| {' | '.join(cells)} |\n"


def main(words: Sequence[str]) -> int:
    """Strike, keep each row as it comes, and say whether all hold."""
    check_complete()
    holds = True
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    asked, runs = asked_for(words), Runs(home)
    told = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
    with ranks_at_hand(home / "log"):
        for draw in asked:
            row = runs.strike(draw)
            keep(row)
            told.write(("" if row.holds else "DOES NOT HOLD ") + line(asdict(row)))
            holds = holds and row.holds
    if not holds:
        sys.stderr.write(f"the runs are in {home}\n")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    enter(main)
