"""A plan in the terminal: tables, the layout on nodes, the pipeline's timeline.

Each pass is its microbatch's number and a line as long as it takes. A step that is wider than
the terminal loses its middle, where every microbatch does as the one before.
"""

from dataclasses import replace
from datetime import datetime

from rich.table import Table

from components.planner.memory import Memory
from components.planner.result import Plan
from components.planner.timeline import RankLine, Timeline
from components.report import plan_tables
from components.report.plan_tables import Picture
from components.report.plan_tree import longest_way, tree_sheet
from components.report.tables import Grid
from components.terminal import console

_LINES = {"forward": "─", "backward": "═", "input": "≈", "weights": "~"}
_SIGNS = {
    "forward": "0── forward pass of microbatch 0",
    "backward": "0══ its backward pass",
    "input": "0≈≈ the gradient of its input",
    "weights": "0~~ the gradient of its weights",
}
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
    kinds = {block.kind for block in timeline.ranks[0].blocks}
    signs = (text for kind, text in _SIGNS.items() if kind in kinds)
    return [*rows, f"     {', '.join([*signs, '· waits'])}"]


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
    filled = next(block.end for block in blocks if block.kind in {"backward", "input"})
    half = (room - len(_CUT)) // 2
    return max(whole, 1 / forward, min(_READABLE / forward, half / filled))


def _draw(line: RankLine, length: int, scale: float) -> str:
    drawn = [_WAITS] * length
    for block in line.blocks:
        start, end = round(block.start * scale), round(block.end * scale)
        number, sign = str(block.microbatch), _LINES[block.kind]
        # Where there is no room for the number and a line, the line alone says what it is.
        if len(number) >= end - start:
            number = ""
        drawn[start:end] = number + sign * (end - start - len(number))
    return "".join(drawn)


def _cut(drawn: str, room: int) -> str:
    if len(drawn) <= room:
        return drawn
    half = (room - len(_CUT)) // 2
    return drawn[:half] + _CUT + drawn[-half:]


PLAIN_WIDTH = 130
_BAR = 24
_MOST_NODES, _NODES_BEFORE_CUT = 8, 4


def print_plan(plan: Plan, picture: Picture, *, now: datetime | None) -> None:
    """Print the tables and the picture; ``now`` dates the end of the run."""
    out, recipe = console(width=PLAIN_WIDTH), plan.recipe
    out.print(f"{recipe.name} on {recipe.cluster.name}, scale={recipe.scale.name}")
    out.print()
    if plan.search is not None:
        out.print(_table(plan_tables.search_sheet(plan.search)))
        for reason in plan.search.why:
            out.print(f" - {reason}")
        out.print()
    out.print(_table(_with_bars(plan.memory)))
    out.print()
    out.print(f"layout: {picture.heading}")
    out.print(_layout_table(picture))
    out.print()
    if picture.timeline is not None:
        for row in timeline_rows(picture.timeline, out.width - 1):
            out.print(f" {row}", no_wrap=True)
        out.print()
    if plan.phases:
        out.print(_table(plan_tables.phases_sheet(plan.phases)))
        out.print()
    out.print(_table(plan_tables.time_sheet(plan, now=now)))
    out.print()
    if plan.children is not None:
        out.print(_table(tree_sheet(plan.children)))
        out.print(longest_way(plan.children))
        out.print()
    out.print(_table(plan_tables.published_sheet(plan.published)))
    out.print()
    for name, item in recipe.assumed.items():
        out.print(f"assumed, not in the sources: {name}: {item.reason}")
    if plan.limit is not None:
        out.print(f"limit: {plan.limit.path}: {plan.limit.problem}; {plan.limit.remedy}")
    for missing in plan.missing:
        out.print(f"missing: {missing.path}: {missing.problem}; {missing.remedy}")


def _table(sheet: Grid) -> Table:
    table = Table(*sheet.columns, box=None, title=sheet.title or None, title_justify="left")
    for row in sheet.rows:
        table.add_row(*row)
    return table


def _with_bars(memory: Memory) -> Grid:
    """Add a bar to each row: how full the device is."""
    sheet, limit, rows = plan_tables.memory_sheet(memory), memory.usable_bytes, []
    for row, stage in zip(sheet.rows, memory.by_stage, strict=True):
        peak = stage["peak_bytes"]
        filled = min(round(_BAR * peak / limit), _BAR)
        bar = "█" * filled + "·" * (_BAR - filled) + ("!" if peak > limit else "")
        rows.append((*row, bar))
    return replace(sheet, columns=(*sheet.columns, ""), rows=rows)


def _layout_table(picture: Picture) -> Table:
    """Show the devices of the first copy's nodes; of many nodes, the first and the last."""
    devices = [str(number) for number in range(picture.groups.devices_per_node)]
    # No space to the left: twelve devices fit beside each other.
    table = Table(*(" node", *devices), box=None, padding=(0, 1, 0, 0))
    nodes = picture.nodes
    is_cut = len(nodes) > _MOST_NODES
    for node in (*nodes[:_NODES_BEFORE_CUT], None, nodes[-1]) if is_cut else nodes:
        if node is None:
            table.add_row(" …")
        else:
            labels = ((picture.groups.label(one, ""), one) for one in node.devices)
            # The ranks of other copies are in parentheses.
            cells = (text if one.first_copy else f"({text})" for text, one in labels)
            table.add_row(f" {node.number}", *cells)
    return table
