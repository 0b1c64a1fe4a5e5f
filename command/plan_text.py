"""A plan in the terminal: tables, the layout on nodes, the pipeline's timeline, the mixture.

Each pass is its microbatch's number and a line as long as it takes. A step that is wider than
the terminal loses its middle, where every microbatch does as the one before.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.table import Table

from components.config.schema.data import DataSection
from components.config.schema.recipe import Recipe
from components.planner.placement import Device, label
from components.planner.timeline import RankLine, Timeline, TimelineBlock
from components.report.plan_tables import (
    Picture,
    Sheet,
    memory_sheet,
    published_sheet,
    time_sheet,
)
from components.report.search_table import search_sheet
from components.terminal import console

if TYPE_CHECKING:
    from rich.console import Console

_LINES = {"forward": "─", "backward": "═", "weights": "~"}
_WAITS, _CUT = "·", " … "
# The number of a pass and some of its line.
_READABLE = 3.0
_LONGEST = 10_000  # forward passes: of stages so unlike the short ones are not drawn
_MOST_RANKS, _SHOWN_AT_EACH_END = 16, 6
_HEAD, _TAIL = "rank ", "  waits  keeps"


def timeline_rows(timeline: Timeline, width: int) -> list[str]:
    """Write a heading, a row a rank and what the signs mean, ``width`` characters wide.

    ``waits`` is the part of the time in which a rank computes nothing, ``keeps`` the most
    microbatches whose activations it holds.
    """
    room = width - len(_HEAD) - len(_TAIL)
    scale = characters_per_second(timeline, room)
    rows = [f"{_HEAD}{f'{timeline.seconds:.3g} s of passes':<{room}}{_TAIL}"]
    for rank in shown_ranks(len(timeline.ranks)):
        if rank is None:
            rows.append("   …")
            continue
        line = timeline.ranks[rank]
        drawn = _cut(_draw(line, round(timeline.seconds * scale), scale), room)
        waits = f"{timeline.waiting_fraction(rank):.1%}"
        rows.append(f"{rank:>4} {drawn:<{room}}{waits:>7}{line.in_flight:>7.3g}")
    return [*rows, _legend(timeline)]


def shown_ranks(count: int) -> list[int | None]:
    """Choose the ranks that have a row; ``None`` stands for those between."""
    if count <= _MOST_RANKS:
        return list(range(count))
    ends = _SHOWN_AT_EACH_END
    return [*range(ends), None, *range(count - ends, count)]


def characters_per_second(timeline: Timeline, room: int) -> float:
    """Take all the room if passes stay readable, else the filling of the pipeline fills half.

    A forward pass then has between one and three characters.
    """
    whole = room / timeline.seconds
    blocks = timeline.ranks[0].blocks
    forward = min(block.end - block.start for block in blocks if block.kind == "forward")
    if whole * forward >= _READABLE or forward * _LONGEST <= timeline.seconds:
        return whole
    filled = next(block.end for block in blocks if block.kind == "backward")
    half = (room - len(_CUT)) // 2
    return max(whole, 1 / forward, min(_READABLE / forward, half / filled))


def _draw(line: RankLine, length: int, scale: float) -> str:
    drawn = [_WAITS] * length
    for block in line.blocks:
        start, end = round(block.start * scale), round(block.end * scale)
        drawn[start:end] = _sign(block, end - start)
    return "".join(drawn)


def _sign(block: TimelineBlock, length: int) -> str:
    number, line = str(block.microbatch), _LINES[block.kind]
    # Where there is no room for the number and a line, the line alone says what it is.
    if len(number) >= length:
        return line * length
    return number + line * (length - len(number))


def _cut(drawn: str, room: int) -> str:
    if len(drawn) <= room:
        return drawn
    half = (room - len(_CUT)) // 2
    return drawn[:half] + _CUT + drawn[-half:]


def _legend(timeline: Timeline) -> str:
    kinds = {block.kind for block in timeline.ranks[0].blocks}
    signs = (
        ("forward", "0── forward pass of microbatch 0"),
        ("backward", "0══ its backward pass"),
        ("weights", "0~~ the gradient of its weights"),
    )
    return "     " + ", ".join([*(text for kind, text in signs if kind in kinds), "· waits"])


def mixture_lines(recipe: Recipe) -> Iterator[str]:
    """Say what is drawn from which token on, and what no source may exceed."""
    length = recipe.budget.sequence_length
    starts = [first for first, _, _ in recipe.data_phases]
    ends = pairwise([*starts, recipe.total_samples])
    for (_, _, shares), (start, end) in zip(recipe.data_phases, ends, strict=True):
        place = f"tokens {start * length:,} to {end * length:,}"
        yield f"mixture, {place}: {_by_share(shares) if shares else _rule(recipe.data)}"
    limits = [
        f"{name} {source.most_epochs} times"
        for name, source in recipe.data.sources.items()
        if source.most_epochs is not None
    ]
    if limits:
        yield f"read at most: {', '.join(limits)}; what is beyond is {recipe.data.surplus}"


def _by_share(shares: Mapping[str, float]) -> str:
    largest_first = sorted(shares.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {share:.4%}" for name, share in largest_first)


def _rule(data: DataSection) -> str:
    if isinstance(data.mixture, str):
        rule = "in natural proportions"
    else:
        rule = f"by tokens ** (1 / {data.mixture.temperature:g})"
    return f"{rule}; action=prepare finds the tokens and prints the shares"


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
