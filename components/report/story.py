"""The story of a run: its events as a table, and where its time went."""

from collections.abc import Sequence

from components.report import numbers
from components.report.journal import Event
from components.report.outcome import Entry
from components.report.tables import Grid, Row, column_labels, row_labels, run_column

# There may be thousands of them, and they say nothing that the goodput does not.
_TOLD_ELSEWHERE = ("checkpoint",)
MOST_NAMED = 8  # of a list in one cell of the table


def story_grid(entries: Sequence[Entry]) -> Grid:
    """Lay out one row an event, run after run, in the order of time."""
    rows = [
        Row(cells=(*label, *cells))
        for entry, label in zip(entries, row_labels(entries), strict=True)
        for cells in _story(entry)
    ]
    columns = (*run_column(entries), "after", "step", "event", "cause", "took", "evidence")
    return Grid(columns=columns, rows=tuple(rows))


def goodput_grid(entries: Sequence[Entry]) -> Grid:
    """Lay out what part of each run's time made progress, and what the rest was."""
    accounts = [entry.run.journal.goodput for entry in entries]
    rows = [
        ("wall time", *(numbers.duration(one.wall_seconds) for one in accounts)),
        (
            "steps that led to the last weights: goodput",
            *(_part(one.progress_seconds, one.wall_seconds) for one in accounts),
        ),
    ]
    for name in accounts[0].lost_seconds:
        parts = (_part(one.lost_seconds[name], one.wall_seconds) for one in accounts)
        rows.append((name, *parts))
    return Grid(
        columns=("", *column_labels(entries)), rows=tuple(Row(cells=cells) for cells in rows)
    )


def _story(entry: Entry) -> list[tuple[str, ...]]:
    events = entry.run.journal.events
    begin = events[0].time - events[0].seconds if events else 0.0
    return [
        (
            numbers.duration(event.time - begin),
            f"{event.step:,}",
            event.kind.replace("_", " "),
            event.cause,
            numbers.duration(event.seconds) if event.seconds else "",
            _evidence(event),
        )
        for event in events
        if event.kind not in _TOLD_ELSEWHERE
    ]


def _evidence(event: Event) -> str:
    return "; ".join(f"{name} {_brief(value)}" for name, value in event.evidence.items())


def _brief(value: object) -> str:
    """Write the first of a long list, as of a job's nodes: the journal has all of them."""
    if isinstance(value, list) and len(value) > MOST_NAMED:
        rest = len(value) - MOST_NAMED
        return f"{numbers.exact(value[:MOST_NAMED])} and {rest:,} more"
    return numbers.exact(value)


def _part(seconds: float, whole: float) -> str:
    if not whole:
        return numbers.ABSENT
    return f"{seconds / whole:.1%} ({numbers.duration(seconds)})"
