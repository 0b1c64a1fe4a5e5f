"""The bill of a tree of runs as a table: a line a node, their sum, and the longest way."""

from components.planner.cost import PlannedNode, PlannedTree
from components.report.plan_tables import significant
from components.report.tables import Grid

NOT_PLANNED, NOT_KNOWN = "not planned", "not known"
GIGA = 1e9


def tree_sheet(tree: PlannedTree) -> Grid:
    """Lay out what each node does itself, in device-hours, days, kWh and GB."""
    rows = [(name, *_node(one)) for name, one in tree.nodes.items()]
    hours, energy = _text(tree.device_hours), _text(tree.energy_kwh)
    rows.append(("all", "", "", "", hours, "", energy, _gigabytes(tree.storage_bytes)))
    columns = (
        *("node", "what", "of", "after tokens"),
        *("device-hours", "days", "kWh", "checkpoints, GB"),
    )
    return Grid(columns=columns, rows=rows, kind="published")


def longest_way(tree: PlannedTree) -> str:
    """Say how long the tree takes at least, without waiting, and by which nodes."""
    return f"longest: {_text(tree.longest_days)} days, {' > '.join(tree.longest_path)}"


def _node(node: PlannedNode) -> tuple[str, ...]:
    at = "" if node.at_tokens is None else f"{node.at_tokens:,}"
    head = (node.kind, node.of or "", at)
    if node.kind != "run":
        return (*head, *[NOT_PLANNED] * 4)
    figures = (node.device_hours, node.days, node.energy_kwh)
    return (*head, *map(_text, figures), _gigabytes(node.storage_bytes))


def _text(value: float | None) -> str:
    return NOT_KNOWN if value is None else significant(value)


def _gigabytes(count: int | None) -> str:
    return _text(None if count is None else count / GIGA)
