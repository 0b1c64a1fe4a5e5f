"""Proposal for computing time: sections of rows with an item, its value and its source."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from components.config.children import needed_tokens
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.schema.types import to_plain
from components.config.tokenizer_spec import id_width
from components.planner.cost import CostEstimate, PlannedTree
from components.planner.rates import PlannedTime
from components.planner.result import Plan
from components.planner.tree import WEIGHT_BYTES, count_stored_checkpoints, weights_bytes
from components.report import numbers
from components.report.document import ReportDocument, ReportSection
from components.report.numbers import format_known, format_significant
from components.report.plan_tables import cost_parts, longest_path, tree_sheet
from components.report.tables import Grid

ProposalRow = tuple[str, str, str]
PLAN, RECIPE = "plan", "recipe"
_OWN_STEPS = "plan: only the steps of each node"
NOT_KNOWN = "not known"
TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, kw_only=True)
class LadderSummary:
    """Prediction from a ladder of small runs: its name, its rows and its limitations."""

    study: str
    rows: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def build_proposal(recipe: Recipe, plan: Plan, ladder: LadderSummary | None) -> ReportDocument:
    """Return the proposal for a recipe, from its plan and, if given, a ladder."""
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
        *([] if plan.children is None else [_whole_tree(plan.children, plan.planned_time)]),
        _part("Layout", _layout(recipe, plan)),
        _part("Storage", _storage(recipe, plan)),
        _part("Checkpoints", _checkpoints(recipe, plan)),
        _risks(plan),
        _sources(recipe, plan),
    )
    title = f"Computing time for {recipe.name} on {recipe.cluster.name}"
    return ReportDocument(
        kind="Proposal", title=title, why=recipe.description, sections=sections
    )


def _part(
    title: str,
    rows: Iterable[ProposalRow],
    notes: Sequence[str] = (),
    columns: ProposalRow = ("", "value", "source"),
) -> ReportSection:
    grid = Grid(columns=columns, rows=tuple(rows), text_columns=3, kind="bill")
    return ReportSection(title, (grid, *notes))


def _stated(recipe: Recipe, key: str, source: str = RECIPE) -> str:
    """Append the published value of a figure and its source to a source text."""
    if (item := recipe.published.get(key)) is None:
        return source
    return f"{source}; published {numbers.format_exact(item.value)} {item.unit} ({item.source})"


def _model(recipe: Recipe) -> Iterator[ProposalRow]:
    counted, model = recipe.derived_numbers.parameters, recipe.model
    derived = "counted from the recipe's shape"
    yield "parameters", f"{counted.total:,}", _stated(recipe, "parameters", derived)
    if counted.active != counted.total:
        source = _stated(recipe, "active_parameters", derived)
        yield "parameters used per token", f"{counted.active:,}", source
    yield "embedding parameters", f"{counted.embedding:,}", derived
    yield "layers, width", f"{model['num_layers']}, {model['dim']:,}", RECIPE
    yield "vocabulary", f"{model['vocab_size']:,}", RECIPE
    flops = recipe.derived_numbers.flops_per_token.full
    source = "forward and backward, full attention matrix, counted from the shape"
    yield "FLOP per token", numbers.format_rate(flops, "FLOP"), source


def _budget(recipe: Recipe) -> Iterator[ProposalRow]:
    budget, derived = recipe.budget, recipe.derived_numbers
    yield "tokens", f"{budget.total_tokens:,}", _stated(recipe, "total_tokens")
    ratio = budget.total_tokens / (derived.parameters.active - derived.parameters.embedding)
    yield "tokens per parameter, without embedding", f"{ratio:,.1f}", "the two figures"
    yield "tokens per step", f"{derived.tokens_per_step:,}", _stated(recipe, "tokens_per_step")
    yield "steps", f"{derived.steps:,}", _stated(recipe, "steps", "counted from both")
    yield "tokens per sequence", f"{budget.sequence_length:,}", RECIPE


def _compute(recipe: Recipe, plan: Plan) -> ReportSection:
    if plan.cost_estimate is None or plan.planned_time is None:
        row = ("device-hours", NOT_KNOWN, "no plan: see Risks")
        return _part("Computing time", [row])
    factor = plan.planned_time.step_seconds_high / plan.planned_time.step_seconds
    notes = [
        "The upper end uses the longest step of the plan's range, "
        f"{factor:.2f} times the expected step."
    ]
    if plan.cost_estimate.failures.count is None:
        notes.append("These values exclude failures: the profile has no failure rate.")
    return _part(
        "Computing time", _bill(recipe, plan, plan.cost_estimate, plan.planned_time), notes
    )


def _bill(
    recipe: Recipe, plan: Plan, bill: CostEstimate, time: PlannedTime
) -> Iterator[ProposalRow]:
    factor = time.step_seconds_high / time.step_seconds
    expected = f"expected {time.step_seconds_low:.3g} to {time.step_seconds_high:.3g} s"
    rate = f"{time.tokens_per_second_per_device:,.0f} tokens per second per device"
    unit = f"plan; accounting of the profile {recipe.cluster.name}"
    yield "seconds per step", f"{time.step_seconds:.3g}, {expected}", PLAN
    origin = _stated(recipe, "tokens_per_second_per_device", PLAN)
    yield "speed", f"{rate}, MFU {time.mfu_full:.1%}", origin
    hours = _stated(recipe, "device_hours", PLAN)
    yield "device-hours, expected", format_significant(bill.device_hours), hours
    for name, days in cost_parts(bill).items():
        part = None if days is None else bill.device_hours * days / bill.days
        yield f"of these: {name}", format_known(part), PLAN
    most = format_significant(bill.device_hours * factor)
    yield "device-hours, upper end", most, "plan, longest step of the range"
    yield "node-hours, expected", format_significant(bill.node_hours), PLAN
    yield f"{bill.site_unit}, expected", format_significant(bill.site_units), unit
    yield f"{bill.site_unit}, upper end", format_significant(bill.site_units * factor), unit
    yield "days, without waiting", f"{bill.days:.3g} to {bill.days * factor:.3g}", PLAN
    if bill.jobs:
        yield "jobs", f"{bill.jobs:,} of the queue {bill.queue}", "plan; limits of the queue"
    source = _stated(recipe, "energy_kwh", "plan; power of a card")
    yield "energy of the devices", format_known(bill.energy_kwh, "kWh"), source
    carbon = bill.emissions.kg_co2e
    origin = "plan; grid and site of the profile"
    yield "CO2e", NOT_KNOWN if carbon is None else numbers.format_carbon(carbon), origin


def _layout(recipe: Recipe, plan: Plan) -> Iterator[ProposalRow]:
    cluster, layout, memory = recipe.cluster, plan.job.layout, plan.memory
    devices = _stated(recipe, "devices", RECIPE)
    yield "nodes", f"{cluster.nodes:,} of {cluster.devices_per_node} devices", devices
    degrees = [f"{axis} {degree}" for axis, degree in layout.used_axes.items()]
    yield "degrees", ", ".join(degrees) or "one rank", RECIPE
    yield "ZeRO stage", str(layout.zero), RECIPE
    yield "microbatches per step", f"{plan.job.microbatches:,}", RECIPE
    used, usable = map(numbers.format_gib, (memory.peak_bytes, memory.usable_bytes))
    verdict = numbers.replace_underscores(memory.memory_verdict)
    yield "memory of the fullest device", f"{used} of {usable} GiB usable, {verdict}", PLAN
    if recipe.cluster.spare_nodes:
        yield "spare nodes of each job", str(recipe.cluster.spare_nodes), RECIPE


def _checkpoints(recipe: Recipe, plan: Plan) -> Iterator[ProposalRow]:
    policy, bill = recipe.checkpoint, plan.cost_estimate
    yield "every", f"{policy.every_tokens:,} tokens", RECIPE
    if bill is not None:
        cost = bill.checkpoints
        yield "interval", f"{cost.interval_seconds / 60:.3g} min", PLAN
        best = cost.best_interval_seconds
        text = NOT_KNOWN if best is None else f"{best / 60:.3g} min"
        yield "best interval", text, "plan, from failures and the time to save"
        yield "stall per checkpoint", f"{cost.stall_seconds:.3g} s", PLAN
        failures = bill.failures.count
        text = NOT_KNOWN if failures is None else f"{failures:.3g}"
        yield "expected failures", text, "plan; failures of the profile"
    how = "during training" if policy.asynchronous else "while training waits"
    yield "written", how, RECIPE
    yield "retained", f"the last {policy.keep}", RECIPE
    if policy.keep_every_tokens != "none":
        yield "retained permanently", f"every {policy.keep_every_tokens:,} tokens", RECIPE
    if policy.copy_to != "none":
        yield "copied to", policy.copy_to, RECIPE


def _risks(plan: Plan) -> ReportSection:
    rows = list[ProposalRow]()
    if plan.memory.memory_verdict != "fits":
        rows.append(("memory", numbers.replace_underscores(plan.memory.memory_verdict), PLAN))
    if plan.limit is not None:
        rows.append((plan.limit.path, plan.limit.problem, plan.limit.remedy))
    rows += [(error.path, error.problem, error.remedy) for error in plan.missing]
    rows += [
        (f"assumed: {name}", numbers.format_exact(to_plain(item.value))[:120], item.reason)
        for name, item in plan.recipe.assumed.items()
    ]
    columns = ("", "risk", "measure, or reason for the assumption")
    return _part("Risks and missing measurements", rows, columns=columns)


def _sources(recipe: Recipe, plan: Plan) -> ReportSection:
    rows: Sequence[ProposalRow] = [
        (name, f"{numbers.format_exact(item.value)} {item.unit}", item.source)
        for name, item in recipe.published.items()
    ]
    fitted = plan.calibration
    how = "constants of the engine, not calibrated on this cluster"
    if fitted is not None:
        error = fitted.time_error.held_out.median
        how = f"calibrated on {fitted.fitted_on}, median error {error:.1%}"
    notes = (f"The plan: {how}.", f"Fingerprint of the recipe: {compute_fingerprint(recipe)}.")
    return _part("Published figures", rows, notes)


def _storage(recipe: Recipe, plan: Plan) -> Iterator[ProposalRow]:
    """Yield item, value and source. The sum covers the known values."""
    policy, total = recipe.checkpoint, recipe.budget.total_tokens
    item = 2 if id_width(recipe.model["vocab_size"]) == "uint16" else 4
    data = total * item
    source = f"{item} bytes per token if each token is read once; less if sources repeat"
    yield "token files, at most", _bytes(data), source
    if plan.cost_estimate is None:
        yield "one checkpoint", NOT_KNOWN, "no plan: see Risks"
        return
    each = plan.cost_estimate.checkpoints.bytes
    yield "one checkpoint with optimizer state", _bytes(each), "plan"
    # A new checkpoint is written before an old one is deleted.
    count, needed = count_stored_checkpoints(recipe), len(needed_tokens(recipe))
    rule = f"the last {policy.keep}, one in progress"
    if policy.keep_every_tokens != "none":
        rule += f", one every {policy.keep_every_tokens:,} tokens"
    rule += f", {needed} for its children" if needed else ""
    yield "concurrent checkpoints", f"{count:,}: {_bytes(count * each)}", f"recipe: {rule}"
    weights = recipe.derived_numbers.parameters.total * WEIGHT_BYTES
    yield "final weights", _bytes(weights), f"{WEIGHT_BYTES} bytes per parameter"
    several = weights_bytes(recipe) - weights
    if several:
        source = f"recipe: every {policy.weights_every_tokens:,} tokens"
        yield "retained weights", _bytes(several), source
    below = 0
    if plan.children is not None and plan.children.storage_bytes is not None:
        below = plan.children.storage_bytes - (count * each + weights + several)
        yield "storage of children", _bytes(below), "the table of the full tree"
    yield "sum", _bytes(data + count * each + weights + several + below), "the rows above"


def _bytes(count: float) -> str:
    return f"{count / TERA:,.2f} TB" if count >= TERA else f"{count / GIGA:,.1f} GB"


def _whole_tree(tree: PlannedTree, time: PlannedTime | None) -> ReportSection:
    return _part("The full tree", _tree_rows(tree, time), [f"{longest_path(tree)}."])


def _tree_rows(tree: PlannedTree, time: PlannedTime | None) -> Iterator[ProposalRow]:
    """Yield the sums of a root run and its children, then one row per node."""
    if tree.device_hours is not None and time is not None:
        # The ranges of the children's layouts are not computed: the root run's applies to all.
        most = tree.device_hours * time.step_seconds_high / time.step_seconds
        yield "total device-hours, expected", format_significant(tree.device_hours), _OWN_STEPS
        source = "plan, the root run's range"
        yield "total device-hours, upper end", format_significant(most), source
    if tree.energy_kwh is not None:
        energy = format_known(tree.energy_kwh, "kWh")
        yield "energy of the devices", energy, "plan; power of a card"
    sheet = tree_sheet(tree)
    for name, kind, _, at, *figures in sheet.rows[:-1]:
        after = f" after {at} tokens" if at else ""
        named = zip(figures, sheet.columns[4:], strict=True)
        texts = [f"{text} {unit}" for text, unit in named] if kind == "run" else figures[:1]
        yield f"{name}: {kind}{after}", ", ".join(texts), _OWN_STEPS
