"""Inject every fault into a run and compare its last checkpoint with a run without faults.

    python -m benchmarks.chaos.chaos [CASE ...]

A miniature trains on four gloo ranks, as tensor 2 x data 2 and as pipeline 2 x data 2. Each
case of `benchmarks/data/chaos_cases.yaml` injects its faults at three random steps and ranks.
The run has to recover without help. Its last weights and optimizer state must equal, bit for
bit, a run without the fault; if the run skips bad data, a run that skips the same data from the
start. A hang must be detected at most two seconds after ``watchdog.step_seconds``. CASE is the
start of a case's name. New rows replace earlier rows of the same case, and the page shows all
saved rows. Exit status 1 if a case of this call fails.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from benchmarks.chaos.cases import CASES, DRAWS, LAYOUTS, Draw, check_complete, draws
from benchmarks.chaos.runs import Runs, preloaded_ranks
from benchmarks.entry import run_script
from benchmarks.generated_section import replace_section, table_line
from benchmarks.machine import describe_machine
from benchmarks.results_store import RESULTS, ROOT, ResultRow, read_rows, save_tree

RESULT = RESULTS / "chaos.json"
PAGE = ROOT / "docs" / "fault_tolerance.md"
WRITER = "benchmarks.chaos.chaos"
HEAD = """
| fault | layout | before step | rank | the run | s | weights equal |
|---|---|---|---:|---|---:|---|
"""

ChaosKey = tuple[str, str, int]


def draws_of(names: Sequence[str]) -> list[Draw]:
    """Return the draws to run: the first of every case, then the second, then the third."""
    every = [
        draw
        for layout in LAYOUTS
        for case in CASES
        if not names or case.name.startswith(tuple(names))
        for draw in draws(layout, case)
    ]
    return sorted(every, key=lambda draw: draw.number)


def key_of(row: ResultRow) -> ChaosKey:
    """Return the key that identifies a row."""
    return row["layout"], row["case"], row["draw"]


def every_key() -> list[ChaosKey]:
    """List the keys of all possible rows, in the order of the page."""
    return [
        (layout, case.name, number)
        for case in CASES
        for layout in LAYOUTS
        for number in range(1, DRAWS + 1)
    ]


def save_row(row: ResultRow) -> None:
    """Save a row among the stored rows and write the page again."""
    rows = {key_of(stored): stored for stored in [*read_rows(RESULT), row]}
    ordered = [rows[key] for key in every_key() if key in rows]
    tree = {
        "convention": "wall clock, from the fault to the last completion of its step",
        "rows": ordered,
        "machine": describe_machine(),
        "versions": {"torch": torch.__version__},
    }
    save_tree(RESULT, tree)
    text = PAGE.read_text("utf-8")
    PAGE.write_text(replace_section(text, "chaos", WRITER, table(ordered)), "utf-8")


def table(rows: Sequence[ResultRow]) -> str:
    """Return the table of rows with a summary, which counts the missing rows."""
    missing = len(every_key()) - len(rows)
    summary = f"{len(rows)} of {len(every_key())} rows, {missing} not run"
    passed = sum(row["holds"] for row in rows)
    late = max((row["hang_late_seconds"] or 0.0 for row in rows), default=0.0)
    hangs = f"Every hang was detected at most {late:.2f} s after the limit."
    return (
        f"{HEAD}{''.join(map(line, rows))}\n{summary}; {passed} pass. {hangs}"
        f"{after_kills(rows)}\n\n"
    )


def after_kills(rows: Sequence[ResultRow]) -> str:
    """Describe the time from a rank's kill to the next step; older rows lack this figure."""
    known = [row.get("recovery_seconds") for row in rows if row["case"] == "kill"]
    seconds = sorted(time for time in known if time is not None)
    if not seconds:
        return ""
    spread = f"{median(seconds):.1f} s later (median; {seconds[0]:.1f} to {seconds[-1]:.1f})"
    return f" After a kill the next step completed {spread}."


def line(row: ResultRow) -> str:
    """Return a row of the table, with the exit status of a run that failed."""
    ended = [f"exit {row['status']}"] if row["status"] else []
    seconds = "" if row["seconds_to_step"] is None else f"{row['seconds_to_step']:.1f}"
    cells = [
        *(row["case"], row["layout"], f"{row['step']}, {row['moment']}", str(row["rank"])),
        ", ".join([*row["did"], *ended]),
        *(seconds, "yes" if row["same_weights"] else "**no**"),
    ]
    return table_line(cells)


def main(words: Sequence[str]) -> int:
    """Run the draws, save each row at once, and return 1 if a case fails."""
    check_complete()
    holds = True
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    runs = Runs(home)
    console = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
    with preloaded_ranks(home / "log"):
        for draw in draws_of(words):
            row = runs.inject(draw)
            save_row(row)
            console.write(("" if row["holds"] else "FAILED ") + line(row))
            holds = holds and row["holds"]
    if not holds:
        sys.stderr.write(f"run folders: {home}\n")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    run_script(main)
