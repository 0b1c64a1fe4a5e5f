"""The table of a sweep: a row a point, as a file beside the run folders and on the terminal."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from components.command_line import command_line
from components.data.files import write_atomically
from components.errors import RecipeError
from components.report import numbers
from components.report.outcome import load_run, outcome_of
from components.report.tables import Grid, terminal_table
from components.run.folder import RunFolder
from components.run.records import Results
from components.terminal import console, say

TABLE = "sweep.csv"
# The figures of a run, each with how a terminal shows it.
FIGURES: Mapping[str, Callable[[Any], str]] = {
    "steps": numbers.exact,
    "tokens": numbers.exact,
    "training_loss": numbers.loss,
    "held_out_loss": numbers.loss,
    "tokens_per_second": numbers.count,
}
REFUSED, NOT_BEGUN, UNFINISHED = "refused", "not begun", "unfinished"
Row = dict[str, Any]


class SweepTable:
    """A row for each point, in the order of the points: what it changes, and what came out."""

    def __init__(self, points: Sequence[Sequence[str]], labels: Sequence[str]) -> None:
        common = set.intersection(*(set(words) for words in points))
        changed = [[word for word in words if word not in common] for words in points]
        self._rows: dict[str, Row] = {
            label: {"state": REFUSED, **dict(word.partition("=")[::2] for word in words)}
            for label, words in zip(labels, changed, strict=True)
        }
        keys = dict.fromkeys(key for row in self._rows.values() for key in row)
        self._keys = [key for key in keys if key != "state"]

    def take(self, label: str, run: Path) -> None:
        """Note how a point stands, from its run folder."""
        folder, row = RunFolder(run), self._rows[label]
        row |= {"state": NOT_BEGUN, "run": run.name}
        if not folder.recipe.exists():
            return
        row["state"] = folder.ended or UNFINISHED
        with suppress(RecipeError):  # killed before it had written what its report needs
            row |= zip(FIGURES, _figures(folder), strict=True)

    def write(self, folder: Path) -> None:
        """Write beside, then rename: a reader never sees half a table."""
        columns = [*self._keys, "state", *FIGURES, "run"]
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows.values())
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / TABLE, text.getvalue())

    def show(self, folder: Path) -> None:
        """Print the rows, and where they are."""
        rows = [
            (
                *(str(row.get(key, "")) for key in self._keys),
                str(row["state"]),
                *(shown(row.get(name)) for name, shown in FIGURES.items()),
            )
            for row in self._rows.values()
        ]
        columns = (*self._keys, "state", *(name.replace("_", " ") for name in FIGURES))
        grid = Grid(columns=columns, rows=rows, text_columns=len(self._keys) + 1)
        console(width=160).print(terminal_table(grid))
        if (folder / TABLE).exists():
            say(f"table: {folder / TABLE}")
        if any(row["state"] not in {REFUSED, NOT_BEGUN} for row in self._rows.values()):
            say(f"all runs in one page: {command_line('action=report', f'run={folder}')}")


def _figures(folder: RunFolder) -> tuple[object, ...]:
    outcome = outcome_of(load_run(folder.path))
    held_out = folder.ended and folder.read("results.json", Results, finite=False).held_out
    return (
        outcome.steps,
        outcome.tokens,
        outcome.training_loss,
        held_out.final if held_out else None,
        outcome.tokens_per_second,
    )
