"""All rules between fields, and warnings of what is allowed but known to cost.

Keys, not class names, carry the rules: a new part with the same keys keeps them too.
"""

from collections.abc import Mapping
from typing import Any

from components.config.batch_ramp import nearest_multiples
from components.config.recipe import Recipe
from components.config.rules import engine
from components.config.rules.batch import check_microbatches
from components.config.rules.layout import check_degrees
from components.config.rules.model import check_further, check_shape
from components.config.rules.parametrization import check_parametrization
from components.config.schema.data import DataSection, Source
from components.config.schema.sections import Precision
from components.config.suggestions import nearest
from components.errors import RecipeError

SHARES_TOLERANCE = 1e-6  # shares are written with six decimals
MOST_WRITTEN = 8  # shares that a line holds
PEAKS = ("start", "value")  # where a warm-up ends


def check_rules(recipe: Recipe) -> None:
    """Raise a RecipeError for the first rule between fields that is broken."""
    check_shape(recipe.shape)
    check_parametrization(recipe)
    check_further(recipe.shape.mtp_depth, recipe.budget.sequence_length)
    check_schedule(recipe.schedule)
    pieces, rows = recipe.tokenizer["vocab_size"], recipe.shape.vocab_size
    if pieces > rows:
        problem = f"{pieces:,} pieces do not fit model.vocab_size {rows:,}"
        raise RecipeError("tokenizer.vocab_size", problem, f"set model.vocab_size={pieces} too")
    _check_budget(recipe)
    _check_precision(recipe.precision)
    engine.check_float8(recipe)
    check_data(recipe.data, total_tokens=recipe.budget.total_tokens)
    check_loss_mask(recipe.data, recipe.budget.sequence_length)
    check_degrees(recipe)
    check_microbatches(recipe)
    engine.check_watchdog(recipe)
    engine.check_guard(recipe)
    engine.check_profiler(recipe)


def _check_budget(recipe: Recipe) -> None:
    budget, degrees = recipe.budget, recipe.parallelism
    length, batch, ramp = budget.sequence_length, budget.global_batch_tokens, budget.ramp_up
    unit = length * degrees.data * degrees.expert * degrees.microbatch_sequences
    if batch % length:
        problem = f"{batch:,} is no multiple of sequence_length {length:,}"
        raise RecipeError("budget.global_batch_tokens", problem, nearest_multiples(batch, unit))
    if budget.total_tokens < batch:
        problem = f"{budget.total_tokens:,} is less than one global batch of {batch:,} tokens"
        remedy = f"give at least {batch:,}, or a smaller global_batch_tokens"
        raise RecipeError("budget.total_tokens", problem, remedy)
    if isinstance(ramp, str):
        return
    for key in ("start_tokens", "increment_tokens"):
        if (tokens := getattr(ramp, key)) % unit:
            problem = (
                f"{tokens:,} is no multiple of {unit:,}, one microbatch of every data rank"
            )
            raise RecipeError(f"budget.ramp_up.{key}", problem, nearest_multiples(tokens, unit))
    grown, increment = batch - ramp.start_tokens, ramp.increment_tokens
    if grown <= 0 or grown % increment:
        problem = f"{increment:,} does not lead from {ramp.start_tokens:,} to {batch:,}"
        remedy = "give a positive divisor of their difference"
        raise RecipeError("budget.ramp_up.increment_tokens", problem, remedy)


def _check_precision(precision: Precision) -> None:
    scale, compute = precision.loss_scale, precision.compute
    scaled = not isinstance(scale, str)
    if not isinstance(scale, str) and scale.initial < scale.minimum:
        problem = f"{scale.initial:g} is below loss_scale.minimum {scale.minimum:g}"
        remedy = f"give at least {scale.minimum:g}"
        raise RecipeError("precision.loss_scale.initial", problem, remedy)
    if compute == "float16" and not scaled:
        problem = "float16 gradients vanish without one"
        remedy = "choose precision=fp16, or precision.compute=bfloat16"
        raise RecipeError("precision.loss_scale", problem, remedy)
    if scaled and compute not in {"float16", "auto"}:
        problem = f"{compute} needs none, it would be ignored"
        raise RecipeError("precision.loss_scale", problem, "set precision.loss_scale=none")
    _check_finer(precision)


def _check_finer(precision: Precision) -> None:
    """Refuse weights coarser than the products, masters than weights, sums without a scale."""
    compute = {"auto": "float32", engine.FLOAT8: "float32"}
    computed = compute.get(precision.compute, precision.compute)
    weights = computed if precision.weights == "auto" else precision.weights
    if not _holds(weights, computed):
        ways = f"set precision.weights=auto, or precision.compute={weights}"
        problem = f"{weights} cannot hold every number of precision.compute {precision.compute}"
        raise RecipeError("precision.weights", problem, ways)
    master = precision.master
    if master != "auto" and not _holds(master, weights):
        problem = f"{master} cannot hold every number of the weights, in {weights}"
        remedy = f"set precision.master=auto, or {weights}"
        raise RecipeError("precision.master", problem, remedy)
    for key in ("accumulate", "reduce"):
        if getattr(precision, key) == "float16" and precision.compute != "float16":
            problem = "float16 has too few exponents for gradients without a loss scale"
            remedy = f"set precision.{key}=float32, or choose precision=fp16"
            raise RecipeError(f"precision.{key}", problem, remedy)


def _holds(wide: str, narrow: str) -> bool:
    """Whether a dtype has all the numbers of another; the two of 16 bits differ."""
    order = {"bfloat16": 0, "float16": 0, "float32": 1, "float64": 2}
    return wide == narrow or order[wide] > order[narrow]


def check_data(data: DataSection, *, total_tokens: int) -> None:
    """Raise a RecipeError for shares, phases or sources that contradict each other."""
    if data.mixture == "given":
        _check_sum("data.shares", data.shares)
    elif data.shares:
        problem = f"{len(data.shares)} shares are given, but data.mixture computes them"
        remedy = "set data.shares={} too, or data.mixture=given"
        raise RecipeError("data.shares", problem, remedy)
    for name, phase in data.phases.items():
        path = f"data.phases.{name}"
        if (phase.from_tokens is None) == (phase.from_fraction is None):
            problem = "says not once where it begins"
            raise RecipeError(path, problem, "give it either from_tokens or from_fraction")
        if phase.from_tokens is not None and phase.from_tokens >= total_tokens:
            problem = (
                f"{phase.from_tokens:,} is not inside the budget of {total_tokens:,} tokens"
            )
            remedy = "let it begin earlier, or leave it out"
            raise RecipeError(f"{path}.from_tokens", problem, remedy)
        _check_sum(f"{path}.shares", phase.shares)
    for name, source in data.sources.items():
        if name not in data.names:
            problem = "no share is given for this source"
            remedy = f"set data.shares.{name}=...; sources {nearest(name, list(data.names))}"
            raise RecipeError(f"data.sources.{name}", problem, remedy)
        sees = ["document_mask"] if data.document_mask else []
        sees += ["packing"] if data.packing == "best_fit" else []
        _check_source(f"data.sources.{name}", source, sees_ends=sees)
    # Token files and text of one run have one tokenizer, which is not trained on the text.
    tokens = [name for name, source in data.sources.items() if source.tokens]
    texts = [name for name, s in data.sources.items() if s.has_text and not s.tokens]
    if tokens and texts and data.tokenizer_folder == "none":
        needs = f"the text of {texts[0]} needs the tokenizer that wrote them"
        problem = f"none, but {tokens[0]} has tokens already, and {needs}"
        remedy = "name the folder that holds its tokenizer.json or tokenizer.model"
        raise RecipeError("data.tokenizer_folder", problem, remedy)


def check_loss_mask(data: DataSection, sequence_length: int) -> None:
    """Raise a RecipeError for a hash of more tokens than a sample has, or ends not seen."""
    if not isinstance(data.goldfish, str) and data.goldfish.window_tokens > sequence_length:
        problem = f"{data.goldfish.window_tokens} tokens are more than a sample's targets"
        remedy = f"give at most {sequence_length}, or set data.goldfish=none"
        raise RecipeError("data.goldfish.window_tokens", problem, remedy)
    without = [name for name, source in data.sources.items() if source.eod == "absent"]
    if without and not data.loss_after_eod:
        problem = f"false, but documents of {without[0]} do not end with the id (eod: absent)"
        remedy = "set data.loss_after_eod=true, or tokenize again with --append-eod"
        raise RecipeError("data.loss_after_eod", problem, remedy)


def _check_sum(path: str, shares: Mapping[str, float]) -> None:
    total = sum(shares.values())
    if abs(total - 1) > SHARES_TOLERANCE:
        problem = f"{len(shares)} shares add up to {total:.6f}, not to 1"
        raise RecipeError(path, problem, _even_out(path, shares, total))


def _even_out(path: str, shares: Mapping[str, float], total: float) -> str:
    """Offer the same proportions as shares, where they are few enough to be read."""
    change = f"change one by {1 - total:+.6f}"
    if total <= 0:
        return "give at least one source a share"
    if len(shares) > MOST_WRITTEN:
        return f"{change}; or, if they are proportions, divide each by {total:.6f}"
    parts = {name: round(share / total, 6) for name, share in shares.items()}
    largest = max(parts, key=lambda name: parts[name])
    parts[largest] = round(parts[largest] + 1 - sum(parts.values()), 6)
    written = ", ".join(f"{name}: {part}" for name, part in parts.items())
    return f"{change}; or, if they are proportions, write '{path}={{{written}}}'"


def _check_source(path: str, source: Source, *, sees_ends: list[str]) -> None:
    kinds = ("files", "embedded", "tokens", "dataset")
    given = [kind for kind in kinds if getattr(source, kind)]
    if len(given) > 1:
        raise RecipeError(path, f"{' and '.join(given)} exclude each other", "give one of them")
    if source.eod == "absent" and not source.tokens:
        problem = "is of token files, and there are none"
        raise RecipeError(f"{path}.eod", problem, "leave it out")
    if source.eod == "absent" and sees_ends:
        problem = f"absent, but data.{sees_ends[0]} needs to see where documents end"
        value = {"document_mask": "false", "packing": "concatenate"}[sees_ends[0]]
        remedy = f"set data.{sees_ends[0]}={value}, or tokenize again with --append-eod"
        raise RecipeError(f"{path}.eod", problem, remedy)


def check_schedule(schedule: Mapping[str, Any], path: str = "schedule") -> None:
    """Raise a RecipeError for a chain without phases, too long parts, or a falling warm-up."""
    for where, phase in check_phases(schedule, path).items():
        check_schedule(phase, where)
    if "warmup_tokens" not in schedule:
        return
    warmup, total = schedule["warmup_tokens"], schedule.get("total_tokens")
    if total is not None and warmup >= total:
        problem = f"{warmup:,} leaves nothing of total_tokens {total:,}"
        remedy = "shorten the warm-up or lengthen the schedule"
        raise RecipeError(f"{path}.warmup_tokens", problem, remedy)
    decay = schedule.get("decay_tokens", 0)
    if total is not None and warmup + decay > total:
        problem = f"{decay:,} and warmup_tokens {warmup:,} are more than total_tokens {total:,}"
        remedy = f"give at most {total - warmup:,}, or lengthen the schedule"
        raise RecipeError(f"{path}.decay_tokens", problem, remedy)
    planned, skipped = schedule.get("planned_tokens"), schedule.get("skipped_tokens", 0)
    if total is not None and (planned or total) < total + skipped:
        part = f" from skipped_tokens {skipped:,} on" if skipped else ""
        problem = f"{planned or total:,} end before total_tokens {total:,}{part}"
        remedy = "plan for more, or leave it out"
        raise RecipeError(f"{path}.planned_tokens", problem, remedy)
    first = schedule.get("warmup_from", 0.0)
    for key in PEAKS:
        if (peak := schedule.get(key, first)) < first:
            problem = f"{first} is above {key} {peak}, where the warm-up ends"
            none = "for no warm-up warmup_tokens=0 and warmup_from=0.0"
            raise RecipeError(f"{path}.warmup_from", problem, f"give at most {peak}, or {none}")


def check_phases(
    schedule: Mapping[str, Any], path: str = "schedule"
) -> dict[str, Mapping[str, Any]]:
    """Return a chain's phases by path, or raise a RecipeError if it has none."""
    if "phases" not in schedule:
        return {}
    phases = {f"{path}.phases.{name}": phase for name, phase in schedule["phases"].items()}
    if not phases:
        raise RecipeError(f"{path}.phases", "is empty", "name at least one phase")
    return phases


def warnings_of(recipe: Recipe) -> tuple[str, ...]:
    """Return what is legal and costly, as ``path: what, and its price``.

    Ultra-Scale Playbook (Tazi et al. 2025): tensor 16 against 8 on nodes of 8, 3B model.
    Quantized training, torchao's documentation: speed with its compiler, one 8B model.
    """
    lines = []
    tensor, devices = recipe.parallelism.tensor, recipe.cluster.devices_per_node
    crossing = recipe.rank_groups.groups_over_nodes("tensor")
    if crossing:
        groups = recipe.cluster.ranks // tensor
        lines.append(
            f"parallelism.tensor: {crossing:,} of {groups:,} groups of {tensor} tensor ranks "
            f"lie on several nodes of {devices} devices; the Ultra-Scale Playbook lost 43 % of "
            "its throughput where that began, and 66 % of the rest at the next doubling"
        )
    if recipe.precision.compute == engine.FLOAT8 and recipe.cluster.hardware != "none":
        planned = "float8 is planned as bfloat16, time and memory"
        unmeasured = "no measured run in it stands behind the planner"
        lines.append(f"precision.compute: {planned}: {unmeasured}")
        if recipe.parallelism.compile == "none":
            lines.append(
                "parallelism.compile: none leaves each cast to float8 a pass over memory of "
                "its own; torchao states its gains, up to 1.25 times on 8 GPUs, for compiled "
                "layers"
            )
    return tuple(lines)
