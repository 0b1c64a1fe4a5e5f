"""The plan in the terminal: tables, the layout on nodes, the pipeline's timeline."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table

from command.plan_timeline import timeline_rows
from components.planner.picture import Picture
from components.planner.placement import Device, label
from components.planner.search_sheet import search_sheet
from components.planner.sheets import Sheet, memory_sheet, published_sheet, time_sheet
from components.terminal import console

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 130
_BAR = 24
_MOST_NODES, _NODES_BEFORE_CUT = 8, 4

Tree = Mapping[str, Any]


def print_plan(tree: Tree, picture: Picture, *, now: datetime | None) -> None:
    """Print what ``output=json`` says, and the picture; ``now`` dates the end of the run."""
    out = console(width=PLAIN_WIDTH)
    if "search" in tree:
        _print_search(tree, out)
    out.print(_memory_table(tree))
    out.print()
    out.print(f"layout: {picture.heading}")
    out.print(_layout_table(picture))
    out.print()
    if picture.timeline is not None:
        for row in timeline_rows(picture.timeline, out.width - 1):
            out.print(f" {row}", no_wrap=True)
        out.print()
    for sheet in (time_sheet(tree, now=now), published_sheet(tree)):
        out.print(_table(sheet))
        out.print()
    for name, item in tree["assumed"].items():
        out.print(f"assumed, never published: {name}: {item['reason']}")
    for item in tree["missing"]:
        text = f"missing: {item['figure']}: {item['problem']}; {item['remedy']}"
        out.print(text)


def _print_search(tree: Tree, out: "Console") -> None:
    sheet = search_sheet(tree)
    table = _table(sheet)
    table.title, table.title_justify = sheet.title, "left"
    out.print(table)
    for reason in tree["search"]["why"]:
        out.print(f" - {reason}")
    out.print()


def _table(sheet: Sheet) -> Table:
    table = Table(*sheet.columns, box=None)
    for row in sheet.rows:
        table.add_row(*row)
    return table


def _memory_table(tree: Tree) -> Table:
    """Add a bar to each row: how full the device is."""
    sheet, limit = memory_sheet(tree), tree["memory"]["usable_bytes"]
    table = Table(*sheet.columns, "", box=None, title=sheet.title, title_justify="left")
    for row, stage in zip(sheet.rows, tree["memory"]["by_stage"], strict=True):
        table.add_row(*row, _bar(stage["peak_bytes"], limit))
    return table


def _bar(peak: float, limit: float) -> str:
    filled = min(round(_BAR * peak / limit), _BAR)
    return "█" * filled + "·" * (_BAR - filled) + ("!" if peak > limit else "")


def _layout_table(picture: Picture) -> Table:
    """Show the devices of the first copy's nodes; of many nodes, the first and the last."""
    devices = [str(number) for number in range(picture.layout.devices_per_node)]
    # No space to the left: twelve devices fit beside each other.
    table = Table(*(" node", *devices), box=None, padding=(0, 1, 0, 0))
    nodes = picture.nodes
    shown = nodes if len(nodes) <= _MOST_NODES else nodes[:_NODES_BEFORE_CUT]
    for node in shown:
        table.add_row(f" {node.number}", *(_cell(device, picture) for device in node.devices))
    if len(shown) < len(nodes):
        table.add_row(" …")
        last = nodes[-1]
        table.add_row(f" {last.number}", *(_cell(device, picture) for device in last.devices))
    return table


def _cell(device: Device, picture: Picture) -> str:
    """Put the ranks of other copies in parentheses."""
    text = label(device, picture.layout, "")
    return text if device.first_copy else f"({text})"
