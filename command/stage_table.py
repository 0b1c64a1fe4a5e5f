"""What each stage did to each source, as a table for the terminal."""

import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from components.data.manifest import StageRecord


def print_stages(stages: Mapping[str, StageRecord]) -> None:
    """Print documents in, out and removed by reason, a row for each stage and source."""
    table = Table("stage", "source", box=None, pad_edge=False, header_style="bold")
    for column in ("documents in", "out", "removed"):
        table.add_column(column, justify="right" if column != "removed" else "left")
    for stage, record in stages.items():
        for source, counts in record.sources.items():
            removed = sorted(counts.removed.items(), key=lambda pair: (-pair[1], pair[0]))
            table.add_row(
                stage,
                source,
                f"{counts.documents_in:,}",
                f"{counts.documents_out:,}",
                ", ".join(f"{number:,} {reason}" for reason, number in removed),
            )
    Console(width=None if sys.stdout.isatty() else 120).print(table, markup=False)
