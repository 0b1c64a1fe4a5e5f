"""A plan as one self-contained HTML file, with the look of a run's report."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.planner.placement import label
from components.planner.timeline import Timeline
from components.report import numbers, plan_tables
from components.report.cards import Card
from components.report.document import check_destination, embedded, set_page, write_page
from components.report.plan_figures import cut_microbatches, memory_figure, timeline_figure
from components.report.plan_tables import Picture
from components.report.search_table import search_sheet
from components.report.tables import Grid, TableRow

Tree = Mapping[str, Any]


def write_plan(tree: Tree, picture: Picture, *, why: str, destination: Path) -> Path:
    """Write the page of a plan, ``tree`` being what ``output=json`` prints.

    Raises:
        RecipeError: the destination is a folder.
    """
    check_destination(destination)
    parts = {
        "plan": tree,
        "why": why,
        "picture": picture,
        "nodes": _nodes(picture),
        "cards": _cards(tree),
        "charts": _charts(tree, picture.timeline),
        "cut": cut_microbatches(picture.timeline) if picture.timeline else None,
        "tables": _tables(tree, picture.timeline),
        "exact": json.dumps(tree, indent=2, ensure_ascii=False),
    }
    return write_page(set_page("plan_page.html.j2", parts), destination)


def _cards(tree: Tree) -> tuple[Card, ...]:
    """Choose what decides: how long, whether it fits, how fast, how dear."""
    memory, time = _memory_card(tree["memory"]), tree["time"]
    if time["step_seconds"] is None:
        unknown = ("not predicted: see what is missing",)
        step = Card(title="step", value=numbers.ABSENT, notes=unknown)
        return step, memory, Card(title="device-hours", value=numbers.ABSENT, notes=unknown)
    low, high = time["step_seconds_low"], time["step_seconds_high"]
    step = Card(
        title="step",
        value=f"{time['step_seconds']:.3g} s",
        notes=(f"expected between {low:.3g} and {high:.3g} s",),
    )
    return (step, memory, *_rate_cards(time), *_bill_cards(tree["bill"]))


def _rate_cards(time: Tree) -> tuple[Card, ...]:
    tokens = numbers.count(time["tokens_per_second"])
    device = f"{time['tokens_per_second_per_device']:,.1f} a device"
    causal = f"{time['mfu_causal']:.1%} with causal attention"
    return (
        Card(title="tokens per second", value=tokens, notes=(device,)),
        Card(title="MFU, full attention", value=f"{time['mfu_full']:.1%}", notes=(causal,)),
    )


def _bill_cards(bill: Tree) -> tuple[Card, ...]:
    site = f"{numbers.measured(bill['site_units'])} {bill['site_unit']}"
    energy = bill["energy_kwh"]
    power = "energy unknown" if energy is None else f"{numbers.kwh(energy)} of the devices"
    chain = f"{bill['jobs']:,} jobs of {bill['queue']}" if bill["jobs"] else "without waiting"
    hours = numbers.count(bill["device_hours"])
    return (
        Card(title="device-hours", value=hours, notes=(site, power)),
        Card(title="days", value=numbers.count(bill["days"]), notes=(chain,)),
    )


def _memory_card(memory: Tree) -> Card:
    fits = memory["verdict"] != "does_not_fit"
    said = memory["verdict"].replace("_", " ")
    return Card(
        title="memory of the fullest rank",
        value=f"{memory['peak_bytes'] / plan_tables.GIB:.1f} GiB",
        notes=(
            f"of {memory['usable_bytes'] / plan_tables.GIB:.1f} GiB usable",
            *((said,) if fits else ()),
        ),
        warning="" if fits else said,
    )


def _charts(tree: Tree, timeline: Timeline | None) -> dict[str, str | None]:
    return {
        "memory": embedded("memory", memory_figure(tree["memory"])),
        "timeline": embedded("timeline", timeline_figure(timeline)) if timeline else None,
    }


def _tables(tree: Tree, timeline: Timeline | None) -> dict[str, Grid]:
    empty = Grid(columns=(), rows=())
    return {
        "search": _grid(search_sheet(tree)) if "search" in tree else empty,
        "memory": _grid(plan_tables.memory_sheet(tree)),
        "time": _grid(plan_tables.time_sheet(tree, now=None)),
        "published": _grid(plan_tables.published_sheet(tree)),
        "assumed": _grid(plan_tables.assumed_sheet(tree)),
        "missing": _grid(plan_tables.missing_sheet(tree)),
        "ranks": _ranks(timeline) if timeline else empty,
    }


def _grid(sheet: plan_tables.Sheet) -> Grid:
    return Grid(
        columns=sheet.columns, rows=tuple(TableRow(cells=cells) for cells in sheet.rows)
    )


def _ranks(timeline: Timeline) -> Grid:
    """Lay out how long each pipeline rank computes and waits, and what it keeps."""
    rows = tuple(
        TableRow(
            cells=(
                str(rank),
                f"{line.busy_seconds:.4g} s",
                f"{timeline.waiting_fraction(rank):.1%}",
                f"{line.in_flight:.3g}",
            )
        )
        for rank, line in enumerate(timeline.ranks)
    )
    columns = ("pipeline rank", "computes", "waits", "microbatches kept at most")
    return Grid(columns=columns, rows=rows)


def _nodes(picture: Picture) -> list[tuple[int, list[tuple[str, bool]]]]:
    """Write each node's devices: their coordinates, and whether the first copy has them."""
    return [
        (
            node.number,
            [(label(d, picture.layout, " "), d.first_copy) for d in node.devices],
        )
        for node in picture.nodes
    ]
