"""The sections of a report that are tables: what runs took, claim, and went through."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from components.report import captions, figure_tables, numbers, tables
from components.report.document import Block, ReportSection
from components.report.measurements import profile_grids
from components.report.outcome import ReportEntry
from components.report.tables import Grid, grid_by_quantity

MOST_NAMED = 8  # of a list in one cell of the table


def numbers_of_runs(entries: Sequence[ReportEntry]) -> Iterator[ReportSection]:
    """Give the sections below the charts, in the order of the page."""
    alone = len(entries) == 1
    is_small = any(map(figure_tables.is_miniature, entries))

    def folded(grid: Grid, rows: str) -> Grid:
        """Fold a long table of several runs; a run alone shows all of its rows."""
        return grid if alone else replace(grid, fold=rows)

    yield _profile(entries)
    plans = [figure_tables.plan_of(entry.run.recipe) for entry in entries]
    planned = folded(figure_tables.planned_grid(entries, plans), "figures")
    yield ReportSection(
        "Planned and measured",
        (planned, figure_tables.parts_grid(entries, plans)) if planned.rows else (),
        captions.PLANNED,
    )
    energy = grid_by_quantity(entries, figure_tables.energy_quantities)
    yield ReportSection("Energy", (energy,), captions.ENERGY)
    published = folded(figure_tables.published_grid(entries), "published figures")
    title = f"Published and {'this run' if alone else 'these runs'}"
    yield ReportSection(
        title, (published,), captions.PUBLISHED + captions.SMALL_RESULTS * is_small
    )
    assumed = folded(figure_tables.assumed_grid(entries), "assumed values")
    yield ReportSection(
        "Assumed", (assumed,), captions.ASSUMED + captions.SMALL_COUNTS * is_small
    )
    yield ReportSection("Arithmetic", (tables.flops_grid(entries),), captions.ARITHMETIC)
    incidents = grid_by_quantity(entries, tables.incidents, "incidents")
    yield ReportSection("Incidents", (incidents,))
    goodput = grid_by_quantity(entries, _goodput, "figures lines")
    yield ReportSection("Goodput", (goodput,), captions.GOODPUT)
    if alone:  # each of several runs has its own on its page
        yield ReportSection("Story", (story_grid(entries[0]),), captions.STORY)
    yield ReportSection("Environment", (tables.environment_grid(entries),))


def _profile(entries: Sequence[ReportEntry]) -> ReportSection:
    grids = profile_grids(entries)
    parts, products, waits = (
        grids[f"profile_{name}"] for name in ("parts", "products", "waits")
    )
    if not parts.rows:
        return ReportSection("Profile", ())
    blocks: list[Block] = [parts]
    if products.rows:
        blocks += [replace(products, title="Products and attention"), captions.PRODUCTS]
    calls = (replace(waits, title="Host and device"), captions.WAITS)
    return ReportSection(
        "Profile", (*blocks, *(calls if waits.rows else (captions.NO_WAITS,))), captions.PROFILE
    )


def story_grid(entry: ReportEntry) -> Grid:
    """Lay out one row an event of a run, in the order of time."""
    events = entry.run.journal.events
    begin = events[0].time - events[0].seconds if events else 0.0
    rows = [
        (
            numbers.duration(event.time - begin),
            f"{event.step:,}",
            event.kind.replace("_", " "),
            event.cause,
            numbers.duration(event.seconds) if event.seconds else "",
            "; ".join(f"{name} {_brief(value)}" for name, value in event.evidence.items()),
        )
        for event in events
        # There may be thousands of these, and they say nothing that the goodput does not.
        if event.kind != "checkpoint"
    ]
    columns = ("after", "step", "event", "cause", "took", "evidence")
    return Grid(columns=columns, rows=rows, kind="story", fold="events")


def _brief(value: object) -> str:
    """Write the first of a long list, as of a job's nodes: the journal has all of them."""
    if isinstance(value, list) and len(value) > MOST_NAMED:
        rest = len(value) - MOST_NAMED
        return f"{numbers.exact(value[:MOST_NAMED])} and {rest:,} more"
    return numbers.exact(value)


def _goodput(entry: ReportEntry) -> dict[str, str]:
    account = entry.run.journal.goodput
    whole, progress = account.wall_seconds, "steps that led to the last weights: goodput"
    parts = {progress: account.progress_seconds, **account.lost_seconds}
    return {"wall time": numbers.duration(whole)} | {
        name: f"{part / whole:.1%} ({numbers.duration(part)})" if whole else numbers.ABSENT
        for name, part in parts.items()
    }
