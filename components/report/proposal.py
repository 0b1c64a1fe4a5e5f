"""A proposal for computing time: sections of rows, each an item, its value and its source."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from components.config.children import needed_tokens
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.schema.types import thaw
from components.config.tokenizer_spec import id_width
from components.planner.cost import CostEstimate
from components.planner.memory import GIB
from components.planner.rates import PlannedTime
from components.planner.result import Plan
from components.planner.tree import WEIGHT_BYTES, kept_checkpoints, weights_bytes
from components.report import numbers
from components.report.document import ReportDocument, ReportSection
from components.report.plan_tables import significant
from components.report.plan_tree import longest_way, tree_sheet
from components.report.tables import Grid

Row = tuple[str, str, str]
PLAN, RECIPE = "plan", "recipe"
_OWN_STEPS = "plan: the steps that each node does itself"
NOT_KNOWN = "not known"
TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, kw_only=True)
class LadderSays:
    """What a ladder of small runs predicts: its name, its rows and what limits them."""

    study: str
    rows: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def propose(recipe: Recipe, plan: Plan, ladder: LadderSays | None) -> ReportDocument:
    """Put a proposal together from a recipe, its plan, and a ladder if there is one."""
    expected = []
    if ladder is not None:
        source = f"fit of the runs of {ladder.study}"
        rows = [(label, text, source) for label, text in ladder.rows]
        expected.append(_part("Expected loss", rows, ladder.notes))
    sections = (
        _part("Model", _model(recipe)),
        _part("Training budget", _budget(recipe)),
        *expected,
        _compute(recipe, plan),
        *([] if plan.children is None else [_whole_tree(plan)]),
        _part("Layout", _layout(recipe, plan)),
        _part("Storage", _storage(recipe, plan)),
        _part("Checkpoints", _checkpoints(recipe, plan)),
        _risks(plan),
        _sources(recipe, plan),
    )
    title = f"Computing time for {recipe.name} on {recipe.cluster.name}"
    return ReportDocument(kind="Proposal", title=title, why=recipe.why, sections=sections)


def _part(
    title: str,
    rows: Iterable[Row],
    notes: Sequence[str] = (),
    columns: Row = ("", "value", "source"),
) -> ReportSection:
    grid = Grid(columns=columns, rows=tuple(rows), text_columns=3, kind="bill")
    return ReportSection(title, (grid, *notes))


def _stated(recipe: Recipe, key: str, source: str = RECIPE) -> str:
    """Add to a source what is published of the figure, with the place."""
    if (item := recipe.published.get(key)) is None:
        return source
    return f"{source}; published {numbers.exact(item.value)} {item.unit} ({item.source})"


def _model(recipe: Recipe) -> Iterator[Row]:
    counted, model = recipe.derived.parameters, recipe.model
    derived = "counted from the recipe's shape"
    yield "parameters", f"{counted.total:,}", _stated(recipe, "parameters", derived)
    if counted.active != counted.total:
        said = _stated(recipe, "active_parameters", derived)
        yield "parameters that a token uses", f"{counted.active:,}", said
    yield "of the embedding", f"{counted.embedding:,}", derived
    yield "layers, width", f"{model['num_layers']}, {model['dim']:,}", RECIPE
    yield "vocabulary", f"{model['vocab_size']:,}", RECIPE
    flops = recipe.derived.flops_per_token.full
    said = "forward and backward, the whole attention matrix, counted from the shape"
    yield "FLOP a token", numbers.rate(flops, "FLOP"), said


def _budget(recipe: Recipe) -> Iterator[Row]:
    budget, derived = recipe.budget, recipe.derived
    yield "tokens", f"{budget.total_tokens:,}", _stated(recipe, "total_tokens")
    ratio = budget.total_tokens / (derived.parameters.active - derived.parameters.embedding)
    yield "tokens a parameter, without embedding", f"{ratio:,.1f}", "the two figures"
    yield "tokens a step", f"{derived.tokens_per_step:,}", _stated(recipe, "tokens_per_step")
    yield "steps", f"{derived.steps:,}", _stated(recipe, "steps", "counted from both")
    yield "tokens a sequence", f"{budget.sequence_length:,}", RECIPE


def _compute(recipe: Recipe, plan: Plan) -> ReportSection:
    if plan.bill is None or plan.rates is None:
        row = ("device-hours", NOT_KNOWN, "no plan: see Risks")
        return _part("Computing time", [row])
    factor = plan.rates.step_seconds_high / plan.rates.step_seconds
    notes = [
        "The upper end takes each step for as long as the plan's range allows, "
        f"{factor:.2f} times the expected step."
    ]
    if plan.bill.failures.count is None:
        notes.append(
            "No failure is in these figures: the profile does not say how often nodes fail."
        )
    return _part("Computing time", _bill(recipe, plan, plan.bill, plan.rates), notes)


def _bill(recipe: Recipe, plan: Plan, bill: CostEstimate, time: PlannedTime) -> Iterator[Row]:
    factor = time.step_seconds_high / time.step_seconds
    expected = f"expected {time.step_seconds_low:.3g} to {time.step_seconds_high:.3g} s"
    rate = f"{time.tokens_per_second_per_device:,.0f} tokens a second a device"
    yield "seconds a step", f"{time.step_seconds:.3g}, {expected}", PLAN
    said = _stated(recipe, "tokens_per_second_per_device", PLAN)
    yield "speed", f"{rate}, MFU {time.mfu_full:.1%}", said
    hours = _stated(recipe, "device_hours", PLAN)
    yield "device-hours, expected", significant(bill.device_hours), hours
    parts = (
        ("steps", bill.useful_days),
        ("checkpoints, which stop the run", bill.checkpoint_days),
        ("evaluations", bill.evaluation_days),
        ("failures", bill.failure_days),
        ("starting jobs and handing over", bill.chain_days),
    )
    for name, days in parts:
        part = None if days is None else bill.device_hours * days / bill.days
        yield f"of these: {name}", NOT_KNOWN if part is None else significant(part), PLAN
    most = significant(bill.device_hours * factor)
    yield "device-hours, upper end", most, "plan, the long end of a step"
    unit = f"plan; accounting of the profile {recipe.cluster.name}"
    yield "node-hours, expected", significant(bill.node_hours), PLAN
    yield f"{bill.site_unit}, expected", significant(bill.site_units), unit
    yield f"{bill.site_unit}, upper end", significant(bill.site_units * factor), unit
    yield "days, without waiting", f"{bill.days:.3g} to {bill.days * factor:.3g}", PLAN
    if bill.jobs:
        yield "jobs", f"{bill.jobs:,} of the queue {bill.queue}", "plan; limits of the queue"
    energy = NOT_KNOWN if bill.energy_kwh is None else f"{significant(bill.energy_kwh)} kWh"
    yield (
        "energy of the devices",
        energy,
        _stated(recipe, "energy_kwh", "plan; power of a card"),
    )
    carbon = bill.emissions.kg_co2e
    said = "plan; grid and site of the profile"
    yield "CO2e", NOT_KNOWN if carbon is None else numbers.carbon(carbon), said


def _layout(recipe: Recipe, plan: Plan) -> Iterator[Row]:
    cluster, layout, memory = recipe.cluster, plan.job.layout, plan.memory
    devices = _stated(recipe, "devices", RECIPE)
    yield "nodes", f"{cluster.nodes:,} of {cluster.devices_per_node} devices", devices
    degrees = [f"{axis} {degree}" for axis, degree in layout.used_axes.items()]
    yield "degrees", ", ".join(degrees) or "one rank", RECIPE
    yield "ZeRO stage", str(layout.zero), RECIPE
    yield "microbatches a step", f"{plan.job.microbatches:,}", RECIPE
    used, usable = memory.peak_bytes / GIB, memory.usable_bytes / GIB
    said = f"{used:.1f} of {usable:.1f} GiB usable, {memory.verdict.replace('_', ' ')}"
    yield "memory of the fullest device", said, PLAN
    if recipe.cluster.spare_nodes:
        yield "spare nodes of each job", str(recipe.cluster.spare_nodes), RECIPE


def _checkpoints(recipe: Recipe, plan: Plan) -> Iterator[Row]:
    policy, bill = recipe.checkpoint, plan.bill
    yield "every", f"{policy.every_tokens:,} tokens", RECIPE
    if bill is not None:
        cost = bill.checkpoints
        yield "time between two", f"{cost.interval_seconds / 60:.3g} min", PLAN
        best = cost.best_interval_seconds
        said = NOT_KNOWN if best is None else f"{best / 60:.3g} min"
        yield "time that costs least", said, "plan, from failures and the time of one"
        yield "stop of the run by each", f"{cost.stall_seconds:.3g} s", PLAN
        failures = bill.failures.count
        said = NOT_KNOWN if failures is None else f"{failures:.3g}"
        yield "failures to expect", said, "plan; failures of the profile"
    how = "beside training" if policy.asynchronous else "while training waits"
    yield "written", how, RECIPE
    yield "kept", f"the last {policy.keep}", RECIPE
    if policy.keep_every_tokens != "none":
        yield "kept for good", f"every {policy.keep_every_tokens:,} tokens", RECIPE
    if policy.copy_to != "none":
        yield "copied to", policy.copy_to, RECIPE


def _risks(plan: Plan) -> ReportSection:
    rows = list[Row]()
    if plan.memory.verdict != "fits":
        rows.append(("memory", plan.memory.verdict.replace("_", " "), PLAN))
    if plan.limit is not None:
        rows.append((plan.limit.path, plan.limit.problem, plan.limit.remedy))
    rows += [(one.path, one.problem, one.remedy) for one in plan.missing]
    rows += [
        (f"assumed: {name}", numbers.exact(thaw(item.value))[:120], item.reason)
        for name, item in plan.recipe.assumed.items()
    ]
    columns = ("", "risk", "the way out, or why it was assumed")
    return _part("Risks, and what nobody has measured", rows, columns=columns)


def _sources(recipe: Recipe, plan: Plan) -> ReportSection:
    rows: Sequence[Row] = [
        (name, f"{numbers.exact(item.value)} {item.unit}", item.source)
        for name, item in recipe.published.items()
    ]
    fitted = plan.calibration
    how = "constants of the engine, not calibrated on this cluster"
    if fitted is not None:
        error = fitted.time_error.held_out.median
        how = f"calibrated on {fitted.fitted_on}, off by a median of {error:.1%}"
    notes = (f"The plan: {how}.", f"Fingerprint of the recipe: {compute_fingerprint(recipe)}.")
    return _part("Published figures", rows, notes)


def _storage(recipe: Recipe, plan: Plan) -> Iterator[Row]:
    """Yield item, value and source; the sum is that of what is known."""
    policy, total = recipe.checkpoint, recipe.budget.total_tokens
    item = 2 if id_width(recipe.model["vocab_size"]) == "uint16" else 4
    data = total * item
    said = f"{item} bytes a token, each read once: less if sources are repeated"
    yield "tokens as files, at most", _bytes(data), said
    if plan.bill is None:
        yield "a checkpoint", NOT_KNOWN, "no plan: see Risks"
        return
    each = plan.bill.checkpoints.bytes
    yield "a checkpoint, with the optimizer", _bytes(each), "plan"
    # The new one is written before an old one goes.
    count, needed = kept_checkpoints(recipe), len(needed_tokens(recipe))
    rule = f"the last {policy.keep}, one being written"
    if policy.keep_every_tokens != "none":
        rule += f", one every {policy.keep_every_tokens:,} tokens"
    rule += f", {needed} for its children" if needed else ""
    yield "checkpoints at a time", f"{count:,}: {_bytes(count * each)}", f"recipe: {rule}"
    weights = recipe.derived.parameters.total * WEIGHT_BYTES
    yield "weights at the end", _bytes(weights), f"{WEIGHT_BYTES} bytes a parameter"
    several = weights_bytes(recipe) - weights
    if several:
        said = f"recipe: every {policy.weights_every_tokens:,} tokens"
        yield "weights that stay", _bytes(several), said
    below = 0
    if plan.children is not None and plan.children.storage_bytes is not None:
        below = plan.children.storage_bytes - (count * each + weights + several)
        yield "of its children", _bytes(below), "the table of the whole tree"
    yield "sum", _bytes(data + count * each + weights + several + below), "the rows above"


def _bytes(count: float) -> str:
    return f"{count / TERA:,.2f} TB" if count >= TERA else f"{count / GIGA:,.1f} GB"


def _whole_tree(plan: Plan) -> ReportSection:
    """Lay out the sums of a trunk and its children, then a row a node."""
    tree, time, rows = plan.children, plan.rates, list[Row]()
    assert tree is not None, "only who has children asks"
    if tree.device_hours is not None and time is not None:
        # Nobody has asked for the range of each child's layout: the trunk's stands for all.
        most = tree.device_hours * time.step_seconds_high / time.step_seconds
        rows += [
            ("device-hours of all, expected", significant(tree.device_hours), _OWN_STEPS),
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
        rows.append((f"{name}: {kind}{after}", said, _OWN_STEPS))
    return _part("The whole tree", rows, [f"{longest_way(tree)}."])
