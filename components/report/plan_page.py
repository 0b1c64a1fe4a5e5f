"""A plan as one self-contained HTML file: cards, tables, timeline and memory chart."""

from pathlib import Path

from components.config.schema.types import thaw
from components.json_file import dump_json
from components.planner.memory import GIB, Memory
from components.planner.result import Plan
from components.planner.timeline import Timeline, TimelineBlock
from components.report import numbers, plan_tables
from components.report.figures import PlotlyFigure, colour, empty_figure
from components.report.html import check_destination, figure_html, render_template, write_page
from components.report.plan_tables import PARTS, Picture
from components.report.plan_tree import longest_way, tree_sheet
from components.report.tables import Card, Grid

_KINDS = {
    "forward": "forward",
    "backward": "backward",
    "weights": "gradient of the weights",
    "input": "gradient of the input",
}
# A browser still zooms smoothly over so many bars, and reads so many numbers on them.
MOST_BLOCKS, _MOST_NUMBERED = 10_000, 2_000
# Those of the other charts, and three more: a legend needs one for each part.
_SHADES = (*(colour(place) for place in range(7)), "#6f6fc0", "#7d8a3c", "#8b929c")
_ROW_PIXELS, _FRAME_PIXELS = 24, 110


def write_plan(plan: Plan, picture: Picture, *, why: str, destination: Path) -> Path:
    """Write the page of a plan.

    Raises:
        RecipeError: the destination is a folder.
    """
    check_destination(destination)
    timeline = picture.timeline
    assumed = [
        (name, str(thaw(one.value)), one.reason) for name, one in plan.recipe.assumed.items()
    ]
    missing = [(one.path, one.problem, one.remedy) for one in plan.missing]
    parts = {
        "plan": plan,
        "why": why,
        "picture": picture,
        # Of each device: its coordinates, and whether the first copy has it.
        "nodes": [
            (node.number, [(picture.groups.label(d, " "), d.first_copy) for d in node.devices])
            for node in picture.nodes
        ],
        "longest": longest_way(plan.children) if plan.children else None,
        "cards": _cards(plan),
        "charts": {
            "memory": figure_html("memory", memory_figure(plan.memory)),
            "timeline": figure_html("timeline", timeline_figure(timeline))
            if timeline
            else None,
        },
        "cut": cut_microbatches(timeline) if timeline else None,
        "tables": {
            "search": plan_tables.search_sheet(plan.search) if plan.search else None,
            "memory": plan_tables.memory_sheet(plan.memory),
            "phases": plan_tables.phases_sheet(plan.phases),
            "time": plan_tables.time_sheet(plan, now=None),
            "children": tree_sheet(plan.children) if plan.children else None,
            "published": plan_tables.published_sheet(plan.published),
            "assumed": Grid(columns=("assumed", "value", "reason"), rows=assumed),
            "missing": Grid(columns=("missing", "what was done", "the way out"), rows=missing),
            "ranks": _ranks_sheet(timeline) if timeline else None,
        },
        "exact": dump_json(plan.as_json(), indent=2, ensure_ascii=False),
    }
    return write_page(render_template("plan_page.html.j2", parts), destination)


def _cards(plan: Plan) -> tuple[Card, ...]:
    """Choose what decides: how long, whether it fits, how fast, how dear."""
    memory, time, bill = _memory_card(plan.memory), plan.rates, plan.bill
    if time is None or bill is None:
        unknown = numbers.ABSENT, ("not predicted: see what is missing",)
        return Card("step", *unknown), memory, Card("device-hours", *unknown)
    low, high = time.step_seconds_low, time.step_seconds_high
    expected = f"expected between {low:.3g} and {high:.3g} s"
    site = f"{numbers.measured(bill.site_units)} {bill.site_unit}"
    energy = bill.energy_kwh
    kwh = None if energy is None else f"{numbers.measured(energy)} kWh of the devices"
    if kwh and (carbon := bill.emissions.kg_co2e) is not None:
        kwh += f", {numbers.carbon(carbon)} CO2e"
    chain = plan_tables.jobs_of_chain(bill) if bill.jobs else "without waiting"
    device = f"{time.tokens_per_second_per_device:,.1f} a device"
    causal = f"{time.mfu_causal:.1%} with causal attention"
    return (
        Card("step", f"{time.step_seconds:.3g} s", (expected,)),
        memory,
        Card("tokens per second", numbers.count(time.tokens_per_second), (device,)),
        Card("MFU, full attention", f"{time.mfu_full:.1%}", (causal,)),
        Card("device-hours", numbers.count(bill.device_hours), (site, kwh or "energy unknown")),
        Card("days", numbers.count(bill.days), (chain,)),
    )


def _memory_card(memory: Memory) -> Card:
    title, value = "memory of the fullest rank", f"{memory.peak_bytes / GIB:.1f} GiB"
    said = memory.verdict.replace("_", " ")
    usable = f"of {memory.usable_bytes / GIB:.1f} GiB usable"
    if memory.verdict == "does_not_fit":
        return Card(title, value, (usable,), warning=said)
    return Card(title, value, (usable, said))


def _ranks_sheet(timeline: Timeline) -> Grid:
    rows = []
    for rank, line in enumerate(timeline.ranks):
        waits = f"{timeline.waiting_fraction(rank):.1%}"
        rows.append((str(rank), f"{line.busy_seconds:.4g} s", waits, f"{line.in_flight:.3g}"))
    columns = ("pipeline rank", "computes", "waits", "microbatches kept at most")
    return Grid(columns=columns, rows=rows)


def timeline_figure(timeline: Timeline) -> PlotlyFigure:
    """Draw each pass as a bar; of a long step, the first and the last microbatches alone."""
    figure = _figure("seconds from the start of the step", len(timeline.ranks))
    figure.update_layout(barmode="overlay", bargap=0.15, dragmode="zoom")
    figure.update_xaxes(range=[0, timeline.seconds], exponentformat="none")
    drawn = drawn_blocks(timeline)
    numbered = len(drawn) <= _MOST_NUMBERED
    for index, (kind, name) in enumerate(_KINDS.items()):
        chosen = [(rank, block) for rank, block in drawn if block.kind == kind]
        if not chosen:
            continue
        figure.add_bar(
            orientation="h",
            name=name,
            y=[rank for rank, _ in chosen],
            base=[_rounded(block.start) for _, block in chosen],
            x=[_rounded(block.end - block.start) for _, block in chosen],
            customdata=[[b.microbatch, b.stage, _rounded(b.end)] for _, b in chosen],
            text=[str(block.microbatch) for _, block in chosen] if numbered else None,
            textposition="inside",
            insidetextanchor="start",
            textangle=0,
            marker={"color": colour(index), "line": {"width": 0}},
            hovertemplate=f"{name} of microbatch %{{customdata[0]}}, stage %{{customdata[1]}}"
            "<br>%{base:.5g} to %{customdata[2]:.5g} s<extra></extra>",
        )
    return figure


def _figure(abscissa: str, ranks: int) -> PlotlyFigure:
    height = _FRAME_PIXELS + _ROW_PIXELS * ranks
    figure = empty_figure(abscissa, "pipeline rank", height=height)
    return figure.update_yaxes(autorange="reversed", fixedrange=True, dtick=1, showgrid=False)


def drawn_blocks(timeline: Timeline) -> list[tuple[int, TimelineBlock]]:
    """Pair each block with its rank; from both ends of the step where they are too many."""
    every = [(rank, b) for rank, line in enumerate(timeline.ranks) for b in line.blocks]
    if len(every) <= MOST_BLOCKS:
        return every
    count = 1 + max(block.microbatch for _, block in every)
    ends = max(1, MOST_BLOCKS * count // len(every) // 2)
    return [(rank, b) for rank, b in every if not ends <= b.microbatch < count - ends]


def cut_microbatches(timeline: Timeline) -> tuple[int, int] | None:
    """Return the first and last microbatch that the chart leaves out, if it does."""
    shown = {block.microbatch for _, block in drawn_blocks(timeline)}
    left = {block.microbatch for block in timeline.ranks[0].blocks} - shown
    return (min(left), max(left)) if left else None


def memory_figure(memory: Memory) -> PlotlyFigure:
    """Stack what each pipeline rank holds at its peak, and mark what a device has.

    The peak is either in the passes or in the optimizer's step: the lower one is left out.
    """
    stages = memory.by_stage
    figure = _figure("GiB a device", len(stages))
    figure.update_layout(barmode="stack", bargap=0.25, legend={"traceorder": "normal"})
    for part, shade in zip(PARTS, _SHADES, strict=True):
        held = [stage[f"{part}_bytes"] for stage in stages]
        if any(held):
            figure.add_bar(
                orientation="h",
                name=part,
                y=list(range(len(stages))),
                x=[_rounded(each / GIB) for each in held],
                marker={"color": shade, "line": {"width": 0}},
                hovertemplate=f"{part}: %{{x:.3f}} GiB<extra></extra>",
            )
    figure.add_vline(x=memory.usable_bytes / GIB, line={"color": "#c4506b", "dash": "dash"})
    return figure


def _rounded(value: float) -> float:
    """Seven digits: more than a screen shows, and a third of the file."""
    return float(f"{value:.7g}")
