"""Plan tables: memory, time and cost as text, and the picture of nodes and pipeline.

The terminal and the page set the same cells, so that they cannot say different things.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, datetime, timedelta

from components.config.rank_groups import Node, RankGroups
from components.config.schema.sections import AXES, PublishedFigure
from components.energy.emissions import Emissions
from components.planner.cost import CheckpointCost, CostEstimate
from components.planner.memory import GIB, Memory
from components.planner.rates import PlannedExperts, PlannedRecomputation, PlannedTime
from components.planner.result import ComparedFigure, LayoutsFound, Plan, PlannedPhase
from components.planner.time import timeline_of
from components.planner.timeline import Timeline
from components.report import numbers
from components.report.tables import Grid


def significant(value: float, digits: int = 4) -> str:
    """Write so many digits: 1,110,000, 46.5 or 0.406; an exponent only where it is tiny."""
    number = float(f"{value:.{digits}g}")
    return f"{number:,.0f}" if abs(number) >= 1_000 else f"{number:.{digits}g}"


PARTS = (
    *("weights", "gradients", "master", "optimizer"),
    *("casts", "activations", "loss", "buffers", "step", "base"),
)


def memory_sheet(memory: Memory) -> Grid:
    """Lay out the parts of each pipeline rank's memory, in GiB; they add up to its peak."""
    parts = [part for part in PARTS if any(stage[f"{part}_bytes"] for stage in memory.by_stage)]
    rows = []
    for number, stage in enumerate(memory.by_stage):
        sizes = (f"{stage[f'{part}_bytes'] / GIB:.2f}" for part in (*parts, "peak"))
        rows.append((str(number), *sizes))
    title = f"GiB a device of {memory.usable_bytes / GIB:.1f} usable: {memory.verdict}"
    columns = ("stage", *parts, "peak")
    fold = "pipeline ranks, in GiB"
    return Grid(title=title, columns=columns, rows=rows, kind="figures", fold=fold)


def time_sheet(plan: Plan, *, now: datetime | None) -> Grid:
    """Lay out the step, its parts and rates, and what the run costs; ``now`` dates its end."""
    layout = plan.job.layout
    rows = [] if plan.recipe.start is None else [("start", plan.recipe.start.summary)]
    rows.append(("layout", f"{plan.recipe.cluster.nodes:,} nodes: {layout.product}"))
    if plan.recomputation is not None:
        rows.append(("recomputation", _recomputation(plan.recomputation)))
    if plan.experts is not None:
        rows += _expert_rows(plan.experts, layout.expert)
    if plan.rates is None or plan.bill is None:
        rows.append(("step", "not predicted: see what is missing"))
    else:
        rows += _step_rows(plan.rates)
        if (found := plan.calibration) is not None:
            said = f"{found.layouts} layouts, {found.fitted_on}; others are off by a median of "
            rows.append(("  calibrated on", f"{said}{found.time_error.held_out.median:.1%}"))
        rows += bill_rows(plan.bill, now)
    return Grid(columns=("quantity", ""), rows=rows, text_columns=2, kind="bill")


def _recomputation(found: PlannedRecomputation) -> str:
    parts = found.recompute if isinstance(found.recompute, str) else "+".join(found.recompute)
    every = "" if found.recompute_every == 1 else f" of every {found.recompute_every} layers"
    seconds = "" if found.extra_seconds is None else f" adds {found.extra_seconds:.3g} s,"
    return f"{parts}{every}:{seconds} saves {found.saved_bytes / GIB:.1f} GiB"


_PATHS = {
    "grouped": "by grouped products",
    "sorted": "one after another over sorted pairs",
    "loop": "in a loop that asks the host before each",
}


def _expert_rows(found: PlannedExperts, ranks: int) -> list[tuple[str, str]]:
    """Say what the path, the router and a plain optimizer add to a step, where they do."""
    path = _PATHS[found.path]
    if found.path != "grouped":
        path += f": {found.path_seconds:.3g} s more than by grouped products"
    rows = [("experts", path)]
    if ranks > 1:
        load = "forced to be even"
        if found.load_factor > 1:
            load = f"{found.load_factor:.3g} of the mean on the fullest rank "
            load += f"(assumed: {found.fullest_expert:g} on the fullest expert): "
            load += f"{found.load_seconds:.3g} s"
        rows.append(("  load", load))
    if found.plain_seconds:
        plain = f"{ranks} expert ranks repeat dense state: {found.plain_seconds:.3g} s"
        rows.append(("  plain optimizer", plain))
    return rows


def _step_rows(time: PlannedTime) -> list[tuple[str, str]]:
    expected = f"{time.step_seconds_low:.3g} to {time.step_seconds_high:.3g}"
    tokens, device = time.tokens_per_second, time.tokens_per_second_per_device
    parts = ((name.removesuffix("_seconds"), seconds) for name, seconds in time.parts.items())
    return [
        ("step", f"{time.step_seconds:.3g} s ({expected})"),
        *((f"  {name}", f"{seconds:.3g} s") for name, seconds in parts),
        ("tokens a second", f"{tokens:,.0f}, {device:,.1f} a device"),
        ("MFU, full attention", f"{time.mfu_full:.1%}"),
        ("MFU, causal attention", f"{time.mfu_causal:.1%}"),
        ("HFU, full attention, recomputation counted", f"{time.hfu:.1%}"),
    ]


def bill_rows(bill: CostEstimate, now: datetime | None) -> list[tuple[str, str]]:
    """Return label and text of each row; what nobody knows has none."""
    rows = [
        ("device-hours", significant(bill.device_hours)),
        (f"bill, {bill.site_unit}", significant(bill.site_units)),
    ]
    if bill.energy_kwh is not None:
        rows.append(("energy of the devices", f"{significant(bill.energy_kwh)} kWh"))
        rows += emission_rows(bill.emissions)
    jobs = f", {jobs_of_chain(bill)}" if bill.jobs else ""
    failures = f"{bill.failures.count:.3g} failures" if bill.failures.count is not None else ""
    rows.append(("days, without waiting", f"{bill.days:.3g}{jobs}"))
    saved, evaluated = bill.checkpoints.count, bill.evaluations.count
    for days, label, count in (
        (bill.useful_days, "steps", f", {bill.steps:,} steps"),
        (bill.checkpoint_days, "checkpoints, which stop the run", f", {saved:,} of them"),
        (bill.evaluation_days, "evaluations", f", {evaluated:,} of them"),
        (bill.failure_days, "failures", f", {failures}"),
        (bill.chain_days, "starting jobs and handing over", ""),
    ):
        if days is not None:
            rows.append((f"  {label}", f"{days:.3g}{count}"))
    rows.append(("checkpoints every", _interval(bill.checkpoints)))
    if bill.waiting_days:
        rows.append(("waiting in queues", f"{bill.waiting_days:.3g} days"))
    if now is not None:
        rows.append(("finish if it starts now", _end(now, bill.days + bill.waiting_days)))
    return rows


def emission_rows(found: Emissions) -> list[tuple[str, str]]:
    """Say what the site adds and what the grid emits, or that the profile does not know it."""
    site, grid = "not known", "not known"
    if found.site_kwh is not None:
        site = f"{significant(found.site_kwh)} kWh, PUE {found.power_usage_effectiveness:g}"
    if found.kg_co2e is not None:
        grid = f"{numbers.carbon(found.kg_co2e)}, {found.grams_co2e_per_kwh:g} g a kWh"
    if found.site_kg_co2e is not None:
        grid += f"; {numbers.carbon(found.site_kg_co2e)} with PUE"
    return [("  with what the site adds", site), ("  CO2e of the devices' energy", grid)]


def jobs_of_chain(bill: CostEstimate) -> str:
    """Write how many jobs of which queue a run is, and who submits them if no chain does."""
    jobs = f"{bill.jobs:,} jobs of {bill.queue}"
    if bill.submissions is None or bill.submissions == 1:
        return jobs
    if bill.submissions == bill.jobs:
        return f"{jobs}, each submitted by hand"
    return f"{jobs} in {bill.submissions:,} chains"


def _interval(saving: CheckpointCost) -> str:
    size = significant(saving.bytes / 1e9)
    own = f"{saving.interval_seconds / 60:.3g} min, {size} GB each"
    if saving.best_interval_seconds is None:
        return own
    best = f"{saving.best_interval_seconds / 60:.3g} min"
    return f"{own}; best {best}, checkpoint.every_tokens={saving.best_every_tokens:_}"


def _end(now: datetime, days: float) -> str:
    """Name the minute in which it ends, if it does before the calendar."""
    try:
        return f"{now + timedelta(days=days):%Y-%m-%d %H:%M}"
    except OverflowError:
        return f"after the year {MAXYEAR}"


def phases_sheet(phases: Sequence[PlannedPhase]) -> Grid:
    """Lay out a line a phase, and their sum; without phases, nothing."""
    rows = list[tuple[str, ...]]()
    for one in phases:
        degrees = [f"{axis[0]}{degree}" for axis, degree in one.layout.used_axes.items()]
        rows.append((
            one.name or "first",
            f"{one.tokens:,}",
            f"{one.steps:,}",
            f"{one.sequence_length:,}",
            f"{one.tokens_per_step:,}",
            " ".join(degrees) or "1 rank",
            f"{one.peak_bytes / GIB:.1f}",
            one.verdict.replace("_", " "),
            "" if one.step_seconds is None else f"{one.step_seconds:.4g}",
            "" if one.device_hours is None else significant(one.device_hours),
        ))
    if rows:
        tokens, steps = sum(one.tokens for one in phases), sum(one.steps for one in phases)
        hours = sum(one.device_hours or 0.0 for one in phases)
        said = significant(hours) if hours else ""
        rows.append(("all", f"{tokens:,}", f"{steps:,}", *[""] * 6, said))
    columns = (
        *("phase", "tokens", "steps", "length", "tokens a step", "layout"),
        *("GiB", "", "step, s", "device-hours"),
    )
    return Grid(columns=columns, rows=rows, kind="published")


def published_sheet(published: Mapping[str, PublishedFigure]) -> Grid:
    """Lay out every published figure beside the prediction of the same quantity."""
    rows = []
    for name, item in published.items():
        predicted = deviation = ""
        if isinstance(item, ComparedFigure):
            predicted = "" if item.predicted is None else significant(item.predicted)
            deviation = "" if item.deviation is None else f"{item.deviation:+.1%}"
        value = f"{item.value:,}" if isinstance(item.value, int) else str(item.value)
        rows.append((name, value, item.unit, predicted, deviation))
    columns = ("published", "value", "unit", "predicted", "deviation")
    return Grid(columns=columns, rows=rows, text_columns=3, kind="published")


def search_sheet(found: LayoutsFound) -> Grid:
    """Lay out the best layouts and the published one: what they hold, how long they take."""
    rows = [_layout_row(str(place), one) for place, one in enumerate(found.best, 1)]
    if found.published is not None:
        rows.append(_layout_row("paper", found.published))
    counts, nodes = found.counts, found.best[0].recipe.cluster.nodes
    title = (
        f"layouts: {counts.considered:,} considered, {counts.legal:,} legal, "
        f"{counts.fitting:,} fit {nodes:,} nodes"
    )
    settings = ("ZeRO", "sequences", "schedule", "recomputes")
    columns = ("", *AXES, *settings, "GiB", "", "step, s", "days")
    return Grid(title=title, columns=columns, rows=rows, kind="published")


def _layout_row(place: str, plan: Plan) -> tuple[str, ...]:
    step, bill, layout = plan.time, plan.bill, plan.recipe.parallelism
    stages, every = layout.stages_per_rank, layout.recompute_every
    parts = layout.recompute
    again = parts if isinstance(parts, str) else "+".join(parts)
    schedule = f"{layout.schedule} x {stages}" if stages > 1 else layout.schedule
    return (
        place,
        *map(str, layout.degrees.values()),
        str(layout.zero),
        str(layout.microbatch_sequences),
        schedule if layout.pipeline > 1 else "",
        again if every == 1 else f"{again} / {every}",
        f"{plan.memory.peak_bytes / GIB:.1f}",
        plan.memory.verdict.replace("_", " "),
        "" if step is None else f"{step.total:.4g}",
        "" if bill is None else f"{bill.days:.3g}",
    )


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The nodes of the first copy of the model, and a timeline where there is a pipeline."""

    groups: RankGroups
    nodes: tuple[Node, ...]
    timeline: Timeline | None

    @property
    def heading(self) -> str:
        """Give number and size of the copies, the nodes of the first, and what letters mean."""
        layout = self.groups.layout
        ranks, nodes = layout.ranks // layout.data, layout.ranks // self.groups.devices_per_node
        size = "1 rank" if ranks == 1 else f"{ranks:,} ranks"
        where = f"{len(self.nodes):,} of {nodes:,} nodes"
        text = f"one copy of the model, of {size} on {where}"
        if layout.data > 1:
            copies = f"{layout.data:,} copies of the model"
            text = f"{copies}, each of {size}; the first is on {where}"
        return "; ".join(filter(None, (text, self.groups.legend)))


def picture_of(plan: Plan) -> Picture:
    """Draw a plan; a step that could not be predicted has no timeline."""
    timeline = None
    if plan.time is not None and plan.job.layout.pipeline > 1:
        timeline = timeline_of(plan.job, plan.hardware, plan.software.speed)
    groups = plan.job.groups
    return Picture(groups=groups, nodes=groups.first_copy_nodes(), timeline=timeline)
