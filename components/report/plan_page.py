"""The page of a plan, and what a terminal shows of it: cards, tables, timeline, memory."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from components.config.schema.types import thaw
from components.json_file import dump_json
from components.planner.memory import GIB, Memory
from components.planner.result import Plan
from components.planner.timeline import Timeline, TimelineBlock
from components.report import numbers, plan_tables
from components.report.document import CodeBlock, Figure, Fold, ReportDocument, ReportSection
from components.report.figures import PlotlyFigure, colour, empty_figure
from components.report.plan_tables import PARTS, Picture
from components.report.plan_text import memory_rows, timeline_rows
from components.report.plan_tree import longest_way, tree_sheet
from components.report.tables import Card, Cells, Grid

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


def plan_document(
    plan: Plan, picture: Picture, *, why: str, now: datetime | None = None
) -> ReportDocument:
    """Set a plan for a page or, where ``now`` dates the end of the run, for a terminal."""
    notices = []
    if plan.limit:
        limit = plan.limit
        notices.append(f"The queue: {limit.path}: {limit.problem}; {limit.remedy}")
    if plan.missing:
        notices.append(
            "Some figures of this machine were never measured; what stands for them is listed "
            "below, and the range of the step is twice as wide."
        )
    verdict, recipe = plan.memory.verdict, plan.recipe
    colours, cluster = {"does_not_fit": "failed", "fits": "finished"}, recipe.cluster
    return ReportDocument(
        kind="Plan",
        title=f"{recipe.name} on {cluster.name}, scale={recipe.scale.name}",
        why=why,
        tags=(
            (verdict.replace("_", " "), colours.get(verdict, "")),
            (f"{cluster.nodes:,} nodes of {cluster.devices_per_node} devices", ""),
            (f"{plan.job.microbatches:,} microbatches a step", ""),
        ),
        notices=notices,
        cards=_cards(plan),
        sections=(*_placed(plan, picture), *_billed(plan, now)),
    )


def _placed(plan: Plan, picture: Picture) -> Iterator[ReportSection]:
    """Say what a step is and where it runs: layouts found, memory, nodes, timeline."""
    if plan.search:
        yield ReportSection(
            "Layouts found",
            (plan_tables.search_sheet(plan.search), *plan.search.why),
            "The first is planned on this page. A tight one stands where a step a sixth longer "
            "would.",
        )
    yield ReportSection(
        "Phases of the run",
        (plan_tables.phases_sheet(plan.phases),),
        "The step, its layout and its memory below are those of the first phase; the bill is "
        "that of all.",
    )
    memory = Figure(
        "memory",
        lambda: memory_figure(plan.memory),
        "Memory of each pipeline rank, by part; the table below has the numbers",
        rows=lambda width: memory_rows(plan.memory),
    )
    yield ReportSection(
        "Memory",
        (memory, plan_tables.memory_sheet(plan.memory)),
        "What each pipeline rank holds in the moment of its peak. Dashed: what tensors can "
        "have of the device.",
    )
    yield ReportSection(
        "Layout",
        (picture.heading, _nodes(picture)),
        "A row is a node, a cell a device and its rank's place on each axis; marked: the ranks "
        "of the first copy, in parentheses those of others.",
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
            "Every forward and backward pass, as the schedule orders them and as long as the "
            "plan predicts, before gradients are averaged. Blank: the rank waits. "
            "Drag to zoom, double click to go back."
            + (f" Microbatches {cut[0]} to {cut[1]} are not drawn." if cut else ""),
        )


def _billed(plan: Plan, now: datetime | None) -> Iterator[ReportSection]:
    """Say what the run costs, beside what is published, and on what the plan rests."""
    assumed = [
        (name, str(thaw(one.value)), one.reason) for name, one in plan.recipe.assumed.items()
    ]
    missing = [(one.path, one.problem, one.remedy) for one in plan.missing]
    yield ReportSection("Time and bill", (plan_tables.time_sheet(plan, now=now),))
    if plan.children:
        yield ReportSection(
            "The whole tree",
            (tree_sheet(plan.children), f"{longest_way(plan.children)}."),
            "The trunk, and each child by what it does itself.",
        )
    yield ReportSection(
        "Published and predicted", (plan_tables.published_sheet(plan.published),)
    )
    yield ReportSection(
        "Assumed",
        (_words(("key", "value", "reason"), assumed, "assumed"),),
        "Values that the recipe needs and that its sources lack. Each was chosen here, for the "
        "reason given.",
    )
    yield ReportSection(
        "Missing",
        (_words(("figure", "what was done", "the way out"), missing, "missing"),),
        "Figures that the machine's profile lacks, what the plan does without them, and how to "
        "measure each.",
    )
    exact = CodeBlock(dump_json(plan.as_json(), indent=2, ensure_ascii=False))
    summary = "the plan as output=json prints it: bytes, seconds, hours and days, unrounded"
    yield ReportSection("Every number", (Fold(summary, [exact]),))


def _words(columns: Cells, rows: Sequence[Cells], kind: str) -> Grid:
    return Grid(columns=columns, rows=rows, text_columns=3, kind=kind)


def _nodes(picture: Picture) -> Grid:
    """Lay out a row a node; the ranks of other copies are in parentheses."""
    nodes = picture.nodes
    labels = [[(picture.groups.label(d, ""), d.first_copy) for d in n.devices] for n in nodes]
    rows = [
        (str(node.number), *(text if first else f"({text})" for text, first in cells))
        for node, cells in zip(nodes, labels, strict=True)
    ]
    marked = frozenset(
        (row, column)
        for row, cells in enumerate(labels)
        for column, (_, first) in enumerate(cells, 1)
        if first
    )
    columns = ("node", *map(str, range(picture.groups.devices_per_node)))
    return Grid(
        columns=columns, rows=rows, text_columns=len(columns), kind="nodes", cut=4, first=marked
    )


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
    return Grid(columns=columns, rows=rows, kind="figures", fold="pipeline ranks", cut=4)


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
