"""Plan page, and its content on a terminal: cards, tables, timeline, memory."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from components.config.schema.types import to_plain
from components.json_file import dump_json
from components.planner.memory import GIB, Memory
from components.planner.result import Plan
from components.planner.timeline import Timeline, TimelineBlock
from components.report import numbers, plan_tables
from components.report.document import CodeBlock, Figure, Fold, ReportDocument, ReportSection
from components.report.figures import PlotlyFigure, choose_color, empty_figure
from components.report.plan_tables import PARTS, Picture
from components.report.plan_text import memory_rows, timeline_rows
from components.report.tables import Card, Cells, Grid, grid_of

_KINDS = {
    "forward": "forward",
    "backward": "backward",
    "weights": "gradient of the weights",
    "input": "gradient of the input",
}
# Up to the first number, browsers zoom smoothly. Up to the second, bars have numbers.
MOST_BLOCKS, _MOST_NUMBERED = 10_000, 2_000
# The colors of the other charts plus three, because each part needs one.
_SHADES = (*(choose_color(place) for place in range(7)), "#6f6fc0", "#7d8a3c", "#8b929c")
_ROW_PIXELS, _FRAME_PIXELS = 24, 110


def plan_document(
    plan: Plan, picture: Picture, *, why: str, now: datetime | None = None
) -> ReportDocument:
    """Return the document of a plan. For a terminal, ``now`` dates the end of the run."""
    notices = []
    if plan.limit:
        limit = plan.limit
        notices.append(f"Queue: {limit.path}: {limit.problem}; {limit.remedy}")
    if plan.missing:
        notices.append(
            "Some values of this machine are not measured. The table Missing lists the "
            "substitutes, and the range of the step time is twice as wide."
        )
    verdict, recipe = plan.memory.memory_verdict, plan.recipe
    colours, cluster = {"does_not_fit": "failed", "fits": "finished"}, recipe.cluster
    return ReportDocument(
        kind="Plan",
        title=f"{recipe.name} on {cluster.name}, scale={recipe.scale.name}",
        why=why,
        tags=(
            (numbers.replace_underscores(verdict), colours.get(verdict, "")),
            (f"{cluster.nodes:,} nodes of {cluster.devices_per_node} devices", ""),
            (f"{plan.job.microbatches:,} microbatches per step", ""),
        ),
        notices=notices,
        cards=_cards(plan),
        sections=(*_placed(plan, picture), *_billed(plan, now)),
    )


def _placed(plan: Plan, picture: Picture) -> Iterator[ReportSection]:
    """Yield the sections on the step: search, phases, memory, nodes, timeline."""
    if plan.search:
        yield ReportSection(
            "Layouts found",
            (plan_tables.search_sheet(plan.search), *plan.search.why),
            "This page plans the first layout. The rank of a layout with tight memory is for a "
            "step one sixth longer.",
        )
    yield ReportSection(
        "Phases of the run",
        (plan_tables.phases_sheet(plan.planned_phases),),
        "Step, layout and memory below are for the first phase; the bill covers all phases.",
    )
    memory = Figure(
        "memory",
        lambda: memory_figure(plan.memory),
        "Memory of each pipeline rank, by part; the table below contains the numbers",
        rows=lambda width: memory_rows(plan.memory),
    )
    yield ReportSection(
        "Memory",
        (memory, plan_tables.memory_sheet(plan.memory)),
        "Peak memory of each pipeline rank. Dashed: device memory that tensors can use.",
    )
    yield ReportSection(
        "Layout",
        (picture.heading_text, _nodes(picture)),
        "Each row is a node; each cell is a device with the coordinates of its rank. Ranks of "
        "the first copy are marked; ranks of other copies are in parentheses.",
    )
    if (timeline := picture.timeline) is not None:
        cut = cut_microbatches(timeline)
        chart = Figure(
            "timeline",
            lambda: timeline_figure(timeline),
            "Forward and backward passes of each pipeline rank over the seconds of a step",
            rows=lambda width: timeline_rows(timeline, width),
        )
        yield ReportSection(
            "Timeline of a step",
            (chart, _ranks_sheet(timeline)),
            "All forward and backward passes before gradients are averaged, in the order "
            "of the schedule and with predicted durations. Blank: the rank waits. "
            "Drag to zoom, double-click to reset."
            + (f" Microbatches {cut[0]} to {cut[1]} are not drawn." if cut else ""),
        )


def _billed(plan: Plan, now: datetime | None) -> Iterator[ReportSection]:
    """Yield the sections on cost, published figures, assumed values and missing figures."""
    assumed = [
        (name, str(to_plain(assumption.value)), assumption.reason)
        for name, assumption in plan.recipe.assumed.items()
    ]
    missing = [(error.path, error.problem, error.remedy) for error in plan.missing]
    yield ReportSection("Time and bill", (plan_tables.time_sheet(plan, now=now),))
    if plan.children:
        yield ReportSection(
            "The full tree",
            (
                plan_tables.tree_sheet(plan.children),
                f"{plan_tables.longest_path(plan.children)}.",
            ),
            "The root run and each child; each row counts only the work of its node.",
        )
    yield ReportSection(
        "Published and predicted", (plan_tables.published_sheet(plan.published_figures),)
    )
    yield ReportSection(
        "Assumed",
        (_words(("key", "value", "reason"), assumed, "assumed"),),
        "Values that the recipe needs but its sources lack, with the reason for each choice.",
    )
    yield ReportSection(
        "Missing",
        (_words(("figure", "effect on the plan", "how to measure"), missing, "missing"),),
        "Values that the profile of the machine lacks, their effect on the plan, and how to "
        "measure each value.",
    )
    exact = CodeBlock(dump_json(plan.as_json(), indent=2, ensure_ascii=False))
    summary = "the output of output=json, unrounded: bytes, seconds, hours and days"
    yield ReportSection("Every number", (Fold(summary, [exact]),))


def _words(columns: Cells, rows: Sequence[Cells], kind: str) -> Grid:
    return Grid(columns=columns, rows=rows, text_columns=3, kind=kind)


def _nodes(picture: Picture) -> Grid:
    """Return a table with one row per node. Ranks of other copies are in parentheses."""
    rows, marked = [], set[tuple[int, int]]()
    for row, node in enumerate(picture.nodes):
        cells = [str(node.number)]
        for column, device in enumerate(node.devices, 1):
            label = picture.groups.format_label(device, "")
            if device.first_copy:
                marked.add((row, column))
            cells.append(label if device.first_copy else f"({label})")
        rows.append(tuple(cells))
    columns = ("node", *map(str, range(picture.groups.devices_per_node)))
    return Grid(
        columns=columns,
        rows=rows,
        text_columns=len(columns),
        kind="nodes",
        cut=4,
        first=frozenset(marked),
    )


def _cards(plan: Plan) -> tuple[Card, ...]:
    """Return the cards for a decision: duration, memory, speed, cost."""
    memory, time, bill = _memory_card(plan.memory), plan.planned_time, plan.cost_estimate
    if time is None or bill is None:
        unknown = numbers.ABSENT, ("not predicted: see Missing",)
        return Card("step", *unknown), memory, Card("device-hours", *unknown)
    low, high = time.step_seconds_low, time.step_seconds_high
    expected = f"expected between {low:.3g} and {high:.3g} s"
    site = f"{numbers.format_measured(bill.site_units)} {bill.site_unit}"
    energy = bill.energy_kwh
    kwh = None if energy is None else f"{numbers.format_measured(energy)} kWh of the devices"
    if kwh and (carbon := bill.emissions.kg_co2e) is not None:
        kwh += f", {numbers.format_carbon(carbon)} CO2e"
    chain = plan_tables.jobs_of_chain(bill) if bill.jobs else "without waiting"
    device = f"{time.tokens_per_second_per_device:,.1f} per device"
    causal = f"{time.mfu_causal:.1%} with causal attention"
    return (
        Card("step", f"{time.step_seconds:.3g} s", (expected,)),
        memory,
        Card("tokens per second", numbers.format_count(time.tokens_per_second), (device,)),
        Card("MFU, full attention", f"{time.mfu_full:.1%}", (causal,)),
        Card(
            "device-hours",
            numbers.format_count(bill.device_hours),
            (site, kwh or "energy unknown"),
        ),
        Card("days", numbers.format_count(bill.days), (chain,)),
    )


def _memory_card(memory: Memory) -> Card:
    title, value = "memory of the fullest rank", f"{numbers.format_gib(memory.peak_bytes)} GiB"
    verdict = numbers.replace_underscores(memory.memory_verdict)
    if verdict == "tight":
        verdict += f", fits with a probability of {memory.fit_probability:.0%}"
    usable = f"of {numbers.format_gib(memory.usable_bytes)} GiB usable"
    if memory.memory_verdict == "does_not_fit":
        return Card(title, value, (usable,), warning=verdict)
    return Card(title, value, (usable, verdict))


def _ranks_sheet(timeline: Timeline) -> Grid:
    columns: dict[str, Callable[[int], str]] = {
        "pipeline rank": str,
        "computes": lambda rank: f"{timeline.ranks[rank].busy_seconds:.4g} s",
        "waits": lambda rank: f"{timeline.waiting_fraction(rank):.1%}",
        "peak microbatches in memory": lambda rank: f"{timeline.ranks[rank].in_flight:.3g}",
    }
    ranks = range(len(timeline.ranks))
    return grid_of(ranks, columns, kind="figures", fold="pipeline ranks", cut=4)


def timeline_figure(timeline: Timeline) -> PlotlyFigure:
    """Draw each pass as a bar. A long step shows only its first and last microbatches."""
    figure = _figure("seconds from the start of the step", len(timeline.ranks))
    figure.update_layout(barmode="overlay", bargap=0.15, dragmode="zoom")
    figure.update_xaxes(range=[0, timeline.total_seconds], exponentformat="none")
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
            marker={"color": choose_color(index), "line": {"width": 0}},
            hovertemplate=f"{name} of microbatch %{{customdata[0]}}, stage %{{customdata[1]}}"
            "<br>%{base:.5g} to %{customdata[2]:.5g} s<extra></extra>",
        )
    return figure


def _figure(abscissa: str, ranks: int) -> PlotlyFigure:
    height = _FRAME_PIXELS + _ROW_PIXELS * ranks
    figure = empty_figure(abscissa, "pipeline rank", height=height)
    return figure.update_yaxes(autorange="reversed", fixedrange=True, dtick=1, showgrid=False)


def drawn_blocks(timeline: Timeline) -> list[tuple[int, TimelineBlock]]:
    """Return each block with its rank; of too many, only those at both ends of the step."""
    every = [(rank, b) for rank, line in enumerate(timeline.ranks) for b in line.blocks]
    if len(every) <= MOST_BLOCKS:
        return every
    count = 1 + max(block.microbatch for _, block in every)
    ends = max(1, MOST_BLOCKS * count // len(every) // 2)
    return [(rank, b) for rank, b in every if not ends <= b.microbatch < count - ends]


def cut_microbatches(timeline: Timeline) -> tuple[int, int] | None:
    """Return the first and last microbatch that the chart skips, or None."""
    shown = {block.microbatch for _, block in drawn_blocks(timeline)}
    cut = {block.microbatch for block in timeline.ranks[0].blocks} - shown
    return (min(cut), max(cut)) if cut else None


def memory_figure(memory: Memory) -> PlotlyFigure:
    """Stack each pipeline rank's memory at its peak, and mark the usable memory of a device.

    The peak is either in the passes or in the optimizer step. The lower one is not drawn.
    """
    stages = memory.by_stage
    figure = _figure("GiB per device", len(stages))
    figure.update_layout(barmode="stack", bargap=0.25, legend={"traceorder": "normal"})
    for part, shade in zip(PARTS, _SHADES, strict=True):
        part_bytes = [stage[f"{part}_bytes"] for stage in stages]
        if any(part_bytes):
            figure.add_bar(
                orientation="h",
                name=part,
                y=list(range(len(stages))),
                x=[_rounded(each / GIB) for each in part_bytes],
                marker={"color": shade, "line": {"width": 0}},
                hovertemplate=f"{part}: %{{x:.3f}} GiB<extra></extra>",
            )
    figure.add_vline(x=memory.usable_bytes / GIB, line={"color": "#c4506b", "dash": "dash"})
    return figure


def _rounded(value: float) -> float:
    """Round to seven digits: more than a screen shows, at a third of the file size."""
    return float(f"{value:.7g}")
