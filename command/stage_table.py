"""What each stage did to each source, as a table for the terminal."""

from collections.abc import Mapping

from rich.table import Table

from components.data.manifest import StageCounts, StageRecord
from components.spec.data import Source
from components.terminal import console

UNKNOWN = "unknown"


def print_stages(stages: Mapping[str, StageRecord], sources: Mapping[str, Source]) -> None:
    """Print documents in, out, removed by reason, and in the source's own language."""
    table = Table("stage", "source", box=None, pad_edge=False, header_style="bold")
    for column in ("documents in", "out", "languages", "removed or replaced"):
        table.add_column(
            column, justify="right" if column in {"documents in", "out"} else "left"
        )
    for stage, record in stages.items():
        for source, counts in record.sources.items():
            table.add_row(
                stage,
                source,
                f"{counts.documents_in:,}",
                f"{counts.documents_out:,}",
                _languages(counts, sources[source].language),
                _listed({**counts.removed, **counts.replaced}),
            )
    console(width=140).print(table)


def _languages(counts: StageCounts, claimed: str | None) -> str:
    """Say how much is in the language that the source claims, else what there is most of."""
    known = {name: number for name, number in counts.languages.items() if name != UNKNOWN}
    if claimed is not None and known:
        return f"{known.get(claimed, 0) / sum(known.values()):.1%} {claimed}"
    return _listed(known, most=3)


def _listed(numbers: Mapping[str, int], most: int | None = None) -> str:
    pairs = sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))[:most]
    return ", ".join(f"{number:,} {name}" for name, number in pairs if number)
