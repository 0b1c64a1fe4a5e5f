"""Golden files: texts and tables that `make golden` rewrites, and the message for a change."""

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

AGAIN = "read the difference, then `make golden`"
Row = dict[str, str]


def is_update() -> bool:
    return bool(os.environ.get("UPDATE_GOLDEN"))


def check_text(file: Path, text: str) -> None:
    """Compare a text with its golden file, or rewrite the file."""
    if is_update():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    assert file.read_text("utf-8") == text, AGAIN


def check_table(file: Path, rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Compare rows with a golden CSV file, or rewrite the file; ``keys`` identify a row."""
    if is_update():
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with file.open(newline="", encoding="utf-8") as stream:
        recorded = list(csv.DictReader(stream))
    changes = list(iterate_changes(recorded, rows, keys))
    assert changes == [], f"{AGAIN}\n" + "\n".join(changes)
    assert recorded == list(rows), AGAIN


def iterate_changes(
    before: Sequence[Row], after: Sequence[Row], keys: Sequence[str]
) -> Iterator[str]:
    """Yield each changed cell: the row's keys, the column, both values."""
    tables: list[Mapping[str, Row]] = [
        {" ".join(row[key] for key in keys): row for row in table} for table in (before, after)
    ]
    for name in dict.fromkeys([*tables[0], *tables[1]]):
        old, new = (table.get(name, {}) for table in tables)
        for column in {**old, **new}:
            if old.get(column) != new.get(column):
                yield f"{name}: {column}: {old.get(column)} -> {new.get(column)}"
