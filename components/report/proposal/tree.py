"""What a proposal says of a trunk and its children together: that is what is applied for."""

from components.planner.result import PlanResult
from components.report.plan_tables import significant
from components.report.plan_tree import longest_way, tree_sheet
from components.report.proposal.page import ProposalPart, Row

_SOURCE = "plan: the steps that each node does itself"


def whole_tree(plan: PlanResult) -> ProposalPart:
    """Lay out the tree's sums, then a row a node."""
    tree, time, rows = plan.children, plan.time, list[Row]()
    assert tree is not None, "only who has children asks"
    if tree.device_hours is not None and time is not None:
        # Nobody has asked for the range of each child's layout: the trunk's stands for all.
        most = tree.device_hours * time.step_seconds_high / time.step_seconds
        rows += [
            ("device-hours of all, expected", significant(tree.device_hours), _SOURCE),
            ("device-hours of all, upper end", significant(most), "plan, the trunk's range"),
        ]
    if tree.energy_kwh is not None:
        said = f"{significant(tree.energy_kwh)} kWh"
        rows.append(("energy of the devices", said, "plan; power of a card"))
    sheet = tree_sheet(tree)
    for name, kind, _, at, *figures in sheet.rows[:-1]:
        after = f" after {at} tokens" if at else ""
        named = zip(figures, sheet.columns[4:], strict=True)
        said = figures[0]
        if tree.nodes[name].kind == "run":
            said = ", ".join(f"{text} {unit}" for text, unit in named)
        rows.append((f"{name}: {kind}{after}", said, _SOURCE))
    title = "The whole tree"
    return ProposalPart(title=title, rows=tuple(rows), notes=(f"{longest_way(tree)}.",))
