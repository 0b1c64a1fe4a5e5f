"""What a plan draws: where the ranks lie, and the pipeline's step on a clock."""

from dataclasses import dataclass

from components.planner.job import Layout
from components.planner.placement import Node, meaning, nodes_of_first_copy
from components.planner.plan import Plan
from components.planner.timeline import Timeline, timeline_of


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The nodes of the first copy of the model, and a timeline where there is a pipeline."""

    layout: Layout
    nodes: tuple[Node, ...]
    timeline: Timeline | None

    @property
    def heading(self) -> str:
        """Say how many copies there are, how large, where the first lies, what letters mean."""
        layout = self.layout
        ranks, nodes = layout.ranks // layout.data, layout.ranks // layout.devices_per_node
        size = "1 rank" if ranks == 1 else f"{ranks:,} ranks"
        where = f"{len(self.nodes):,} of {nodes:,} nodes"
        if layout.data == 1:
            said = f"one copy of the model, of {size} on {where}"
        else:
            said = (
                f"{layout.data:,} copies of the model, each of {size}; the first is on {where}"
            )
        return "; ".join(filter(None, (said, meaning(layout))))


def picture_of(plan: Plan) -> Picture:
    """Draw a plan; a step that could not be predicted has no timeline."""
    timeline = None
    if plan.time is not None and plan.job.layout.pipeline > 1:
        timeline = timeline_of(plan.job, plan.hardware, plan.software.speed)
    layout = plan.job.layout
    return Picture(layout=layout, nodes=nodes_of_first_copy(layout), timeline=timeline)
