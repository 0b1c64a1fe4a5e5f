"""Plan tables: memory, time and cost as text, and the picture of nodes and pipeline.

The terminal and the page use the same cells, so they cannot differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, datetime, timedelta

from components.config.rank_groups import Node, RankGroups
from components.config.schema.sections import AXES, Parallelism, PublishedFigure
from components.energy.emissions import Emissions
from components.planner.cost import CheckpointCost, CostEstimate, PlannedNode, PlannedTree
from components.planner.memory import Memory
from components.planner.rates import PlannedExperts, PlannedRecomputation, PlannedTime
from components.planner.result import ComparedFigure, LayoutPlans, Plan, PlannedPhase
from components.planner.time import timeline_of
from components.planner.timeline import Timeline
from components.report import numbers
from components.report.tables import Grid

PARTS = (
    *("weights", "gradients", "master", "optimizer"),
    *("casts", "activations", "loss", "buffers", "step", "base"),
)


def memory_sheet(memory: Memory) -> Grid:
    """Return a table in GiB: each pipeline rank's memory by part, which sum to the peak."""
    parts = [part for part in PARTS if any(stage[f"{part}_bytes"] for stage in memory.by_stage)]
    rows = [
        (
            str(place),
            *(numbers.format_gib(stage[f"{part}_bytes"], 2) for part in (*parts, "peak")),
        )
        for place, stage in enumerate(memory.by_stage)
    ]
    usable = numbers.format_gib(memory.usable_bytes)
    title = f"GiB per device of {usable} usable: {memory.memory_verdict}"
    if memory.memory_verdict == "tight":
        title += f", fits with a probability of {memory.fit_probability:.0%}"
    columns = ("stage", *parts, "peak")
    fold = "pipeline ranks, in GiB"
    return Grid(title=title, columns=columns, rows=rows, kind="figures", fold=fold)


def time_sheet(plan: Plan, *, now: datetime | None) -> Grid:
    """Return the table of step, parts, rates and the run's cost; ``now`` dates its end."""
    layout = plan.job.layout
    rows = [] if plan.recipe.start is None else [("start", plan.recipe.start.start_summary)]
    rows.append(("layout", f"{plan.recipe.cluster.nodes:,} nodes: {layout.degrees_text}"))
    if plan.planned_recomputation is not None:
        rows.append(("recomputation", _recomputation(plan.planned_recomputation)))
    if plan.planned_experts is not None:
        rows += _expert_rows(plan.planned_experts, layout.expert)
    if plan.planned_time is None or plan.cost_estimate is None:
        rows.append(("step", "not predicted: see Missing"))
    else:
        step, *parts = _step_rows(plan.planned_time)
        rows += [step, _range_row(plan), *parts]
        rows += bill_rows(plan.cost_estimate, now)
    return Grid(columns=("quantity", ""), rows=rows, text_columns=2, kind="bill")


def _range_row(plan: Plan) -> tuple[str, str]:
    """Describe the measured steps that the range of the step's time comes from."""
    accuracy = plan.accuracy
    if (fit := plan.calibration) is not None:
        fitted = f"{fit.layouts} layouts, {fit.fitted_on}; median error on others "
        return "  calibrated on", f"{fitted}{fit.time_error.held_out.median:.1%}"
    assert accuracy is not None
    error = f"median error {accuracy.median_error:.1%}"
    return "  range from", f"measured steps: {accuracy.description}; {error}"


def _recomputation(planned: PlannedRecomputation) -> str:
    parts, layers = _joined(planned.recompute), planned.recompute_every
    every = "" if layers == 1 else f" of every {layers} layers"
    seconds = "" if planned.extra_seconds is None else f" adds {planned.extra_seconds:.3g} s,"
    return f"{parts}{every}:{seconds} saves {numbers.format_gib(planned.saved_bytes)} GiB"


_PATHS = {
    "grouped": "by grouped products",
    "sorted": "one by one over sorted pairs",
    "loop": "in a loop with a host synchronization before each",
}


def _expert_rows(planned: PlannedExperts, ranks: int) -> list[tuple[str, str]]:
    """Describe the time that expert path, router and plain optimizer add to a step."""
    path = _PATHS[planned.path]
    if planned.path != "grouped":
        path += f": {planned.path_seconds:.3g} s more than grouped products"
    rows = [("experts", path)]
    if ranks > 1:
        load = "forced to be uniform"
        if planned.load_factor > 1:
            load = f"{planned.load_factor:.3g} of the mean on the fullest rank "
            load += f"(assumed: {planned.fullest_expert:g} on the fullest expert): "
            load += f"{planned.load_seconds:.3g} s"
        rows.append(("  load", load))
    if planned.plain_seconds:
        plain = f"{ranks} expert ranks duplicate dense state: {planned.plain_seconds:.3g} s"
        rows.append(("  plain optimizer", plain))
    return rows


def _step_rows(time: PlannedTime) -> list[tuple[str, str]]:
    expected = f"{time.step_seconds_low:.3g} to {time.step_seconds_high:.3g}"
    tokens, device = time.tokens_per_second, time.tokens_per_second_per_device
    parts = ((name.removesuffix("_seconds"), seconds) for name, seconds in time.parts.items())
    return [
        ("step", f"{time.step_seconds:.3g} s ({expected})"),
        *((f"  {name}", f"{seconds:.3g} s") for name, seconds in parts),
        ("tokens per second", f"{tokens:,.0f}, {device:,.1f} per device"),
        ("MFU, full attention", f"{time.mfu_full:.1%}"),
        ("MFU, causal attention", f"{time.mfu_causal:.1%}"),
        ("HFU, full attention, with recomputation", f"{time.hfu:.1%}"),
    ]


def bill_rows(bill: CostEstimate, now: datetime | None) -> list[tuple[str, str]]:
    """Return label and text of each row. Unknown values have no row."""
    rows = [
        ("device-hours", numbers.format_significant(bill.device_hours)),
        (f"bill, {bill.site_unit}", numbers.format_significant(bill.site_units)),
    ]
    if bill.energy_kwh is not None:
        rows.append(("energy of the devices", numbers.format_known(bill.energy_kwh, "kWh")))
        rows += emission_rows(bill.emissions)
    jobs = f", {jobs_of_chain(bill)}" if bill.jobs else ""
    failures = f"{bill.failures.count:.3g} failures" if bill.failures.count is not None else ""
    rows.append(("days, without waiting", f"{bill.days:.3g}{jobs}"))
    saved, evaluated = bill.checkpoints.count, bill.evaluations.count
    counts = (f", {bill.steps:,} steps", f", {saved:,} of them", f", {evaluated:,} of them")
    named = zip(cost_parts(bill).items(), (*counts, f", {failures}", ""), strict=True)
    rows += [(f"  {part}", f"{days:.3g}{n}") for (part, days), n in named if days is not None]
    rows.append(("checkpoints every", _interval(bill.checkpoints)))
    if bill.waiting_days:
        rows.append(("waiting in queues", f"{bill.waiting_days:.3g} days"))
    if now is not None:
        rows.append(("finish if started now", _end(now, bill.days + bill.waiting_days)))
    return rows


def cost_parts(bill: CostEstimate) -> dict[str, float | None]:
    """Return the parts of a run's days by name. They sum to the total."""
    return {
        "steps": bill.useful_days,
        "stalls for checkpoints": bill.checkpoint_days,
        "evaluations": bill.evaluation_days,
        "failures": bill.failure_days,
        "job starts and handovers": bill.chain_days,
    }


def emission_rows(emissions: Emissions) -> list[tuple[str, str]]:
    """Describe the site's overhead and the grid's emissions, or that the profile lacks them."""
    site, grid = "not known", "not known"
    if emissions.site_kwh is not None:
        energy = numbers.format_known(emissions.site_kwh, "kWh")
        site = f"{energy}, PUE {emissions.power_usage_effectiveness:g}"
    if emissions.kg_co2e is not None:
        carbon = numbers.format_carbon(emissions.kg_co2e)
        grid = f"{carbon}, {emissions.grams_co2e_per_kwh:g} g per kWh"
    if emissions.site_kg_co2e is not None:
        grid += f"; {numbers.format_carbon(emissions.site_kg_co2e)} with PUE"
    return [("  with site overhead", site), ("  CO2e of the devices' energy", grid)]


def jobs_of_chain(bill: CostEstimate) -> str:
    """Describe the jobs and their queue, and manual submissions if no chain is possible."""
    jobs = f"{bill.jobs:,} jobs of {bill.queue}"
    if bill.submissions is None or bill.submissions == 1:
        return jobs
    if bill.submissions == bill.jobs:
        return f"{jobs}, each submitted by hand"
    return f"{jobs} in {bill.submissions:,} chains"


def _interval(saving: CheckpointCost) -> str:
    size = numbers.format_significant(saving.bytes / 1e9)
    own = f"{saving.interval_seconds / 60:.3g} min, {size} GB each"
    if saving.best_interval_seconds is None:
        return own
    best = f"{saving.best_interval_seconds / 60:.3g} min"
    return f"{own}; best {best}, checkpoint.every_tokens={saving.best_every_tokens:_}"


def _end(now: datetime, days: float) -> str:
    """Return the minute of the end, or its year limit if it is beyond the calendar."""
    try:
        return f"{now + timedelta(days=days):%Y-%m-%d %H:%M}"
    except OverflowError:
        return f"after the year {MAXYEAR}"


def phases_sheet(phases: Sequence[PlannedPhase]) -> Grid:
    """Return a table with one row per phase, and their sum. Empty for a run without phases."""
    rows = [
        (
            phase.name or "first",
            *(f"{n:,}" for n in (phase.tokens, phase.steps, phase.sequence_length)),
            f"{phase.tokens_per_step:,}",
            _degrees(phase.layout),
            numbers.format_gib(phase.peak_bytes),
            numbers.replace_underscores(phase.verdict),
            _digits(phase.step_seconds, ".4g"),
            _significant(phase.device_hours),
        )
        for phase in phases
    ]
    if rows:
        tokens = sum(phase.tokens for phase in phases)
        steps = sum(phase.steps for phase in phases)
        hours = sum(phase.device_hours or 0.0 for phase in phases) or None
        rows.append(("all", f"{tokens:,}", f"{steps:,}", *[""] * 6, _significant(hours)))
    columns = (
        *("phase", "tokens", "steps", "length", "tokens per step", "layout"),
        *("GiB", "", "step, s", "device-hours"),
    )
    return Grid(columns=columns, rows=rows, kind="published")


def _degrees(layout: Parallelism) -> str:
    return " ".join(f"{axis[0]}{n}" for axis, n in layout.used_axes.items()) or "1 rank"


def _digits(value: float | None, form: str) -> str:
    """Format a number. The cell is empty if there is none."""
    return "" if value is None else format(value, form)


def _significant(value: float | None) -> str:
    return "" if value is None else numbers.format_significant(value)


def published_sheet(published: Mapping[str, PublishedFigure]) -> Grid:
    """Return the table of every published figure with the prediction of the same quantity."""
    rows = []
    for name, item in published.items():
        predicted = deviation = ""
        if isinstance(item, ComparedFigure):
            predicted = _significant(item.predicted)
            deviation = _digits(item.deviation, "+.1%")
        value = f"{item.value:,}" if isinstance(item.value, int) else str(item.value)
        rows.append((name, value, item.unit, predicted, deviation))
    columns = ("published", "value", "unit", "predicted", "deviation")
    return Grid(columns=columns, rows=rows, text_columns=3, kind="published")


def search_sheet(search: LayoutPlans) -> Grid:
    """Return the table of the best layouts and the published one, with memory and time."""
    rows = [_layout_row(str(place), plan) for place, plan in enumerate(search.best, 1)]
    if search.published is not None:
        rows.append(_layout_row("paper", search.published))
    counts, nodes = search.counts, search.best[0].recipe.cluster.nodes
    title = (
        f"layouts: {counts.considered:,} considered, {counts.legal:,} legal, "
        f"{counts.fitting:,} fit {nodes:,} nodes"
    )
    settings = ("ZeRO", "sequences", "schedule", "recomputes")
    columns = ("", *AXES, *settings, "GiB", "", "step, s", "days")
    return Grid(title=title, columns=columns, rows=rows, kind="published")


def _layout_row(place: str, plan: Plan) -> tuple[str, ...]:
    layout, every = plan.recipe.parallelism, plan.recipe.parallelism.recompute_every
    stages, parts = layout.stages_per_rank, _joined(layout.recompute)
    schedule = f"{layout.schedule} x {stages}" if stages > 1 else layout.schedule
    return (
        place,
        *map(str, layout.axis_degrees.values()),
        str(layout.zero),
        str(layout.microbatch_sequences),
        schedule if layout.pipeline > 1 else "",
        parts if every == 1 else f"{parts} / {every}",
        numbers.format_gib(plan.memory.peak_bytes),
        numbers.replace_underscores(plan.memory.memory_verdict),
        _digits(None if plan.time is None else plan.time.total_seconds, ".4g"),
        _digits(None if plan.cost_estimate is None else plan.cost_estimate.days, ".3g"),
    )


def _joined(recompute: str | Sequence[str]) -> str:
    """Return the recomputation setting as text: one word, or parts of a layer."""
    return recompute if isinstance(recompute, str) else "+".join(recompute)


def tree_sheet(tree: PlannedTree) -> Grid:
    """Return the table of each node's own cost in a tree, and their sum."""
    rows = [
        (name, node.kind, node.of or "", _digits(node.at_tokens, ","), *_node_figures(node))
        for name, node in tree.nodes.items()
    ]
    hours, energy = map(numbers.format_known, (tree.device_hours, tree.energy_kwh))
    rows.append(("all", "", "", "", hours, "", energy, _gigabytes(tree.storage_bytes)))
    columns = (
        *("node", "kind", "of", "after tokens"),
        *("device-hours", "days", "kWh", "checkpoints, GB"),
    )
    return Grid(columns=columns, rows=rows, kind="published")


def _node_figures(node: PlannedNode) -> tuple[str, ...]:
    if node.kind != "run":
        return ("not planned",) * 4
    figures = (node.device_hours, node.days, node.energy_kwh)
    return (*map(numbers.format_known, figures), _gigabytes(node.storage_bytes))


def _gigabytes(count: int | None) -> str:
    return numbers.format_known(None if count is None else count / 1e9)


def longest_path(tree: PlannedTree) -> str:
    """Describe the minimum duration of the tree, without waiting, and its path of nodes."""
    days = numbers.format_known(tree.longest_days)
    return f"longest: {days} days, {' > '.join(tree.longest_path)}"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Nodes of the first copy of the model, and the timeline of a pipeline."""

    groups: RankGroups
    nodes: tuple[Node, ...]
    timeline: Timeline | None

    @property
    def heading_text(self) -> str:
        """Number and size of the copies, nodes of the first copy, legend of the letters."""
        layout = self.groups.layout
        ranks = layout.num_ranks // layout.data
        nodes = layout.num_ranks // self.groups.devices_per_node
        size = "1 rank" if ranks == 1 else f"{ranks:,} ranks"
        where = f"{len(self.nodes):,} of {nodes:,} nodes"
        text = f"one copy of the model, of {size} on {where}"
        if layout.data > 1:
            copies = f"{layout.data:,} copies of the model"
            text = f"{copies}, each of {size}; the first is on {where}"
        return "; ".join(filter(None, (text, self.groups.label_legend)))


def picture_of(plan: Plan) -> Picture:
    """Return the picture of a plan. A step without a predicted time has no timeline."""
    timeline = None
    if plan.time is not None and plan.job.layout.pipeline > 1:
        timeline = timeline_of(plan.job, plan.hardware, plan.software.speed)
    groups = plan.job.rank_groups
    return Picture(groups=groups, nodes=groups.first_copy_nodes(), timeline=timeline)
