"""All rules between fields, and warnings about valid but expensive settings.

The rules refer to keys, not class names, so they apply to new parts with the same keys.
"""

from collections.abc import Mapping
from typing import Any

from components.config.limits import check_at_least, check_at_most, check_multiple
from components.config.recipe import Recipe
from components.config.rules import engine
from components.config.rules.layout import check_degrees, check_microbatches
from components.config.rules.model import check_shape
from components.config.rules.parametrization import check_parametrization
from components.config.schema.data import DataSection, Source
from components.config.schema.phases import PhaseStart
from components.config.schema.sections import Precision
from components.config.suggestions import suggest_similar
from components.errors import RecipeError

SHARES_TOLERANCE = 1e-6  # shares are written with six decimals
PEAKS = ("start", "value")  # where a warm-up ends


def check_rules(recipe: Recipe) -> None:
    """Raise a RecipeError for the first broken rule between fields."""
    shape, budget = recipe.decoder_spec, recipe.budget
    check_shape(shape)
    check_parametrization(recipe)
    length = budget.sequence_length
    check_at_most("model.mtp.depth", shape.mtp_depth, "sequence_length - 1 =", length - 1)
    check_schedule(recipe.schedule)
    pieces = recipe.tokenizer["vocab_size"]
    check_at_most("tokenizer.vocab_size", pieces, "model.vocab_size", shape.vocab_size)
    _check_budget(recipe)
    _check_precision(recipe.precision)
    engine.check_float8(recipe)
    check_data(recipe.data, total_tokens=budget.total_tokens)
    _check_loss_mask(recipe.data, length)
    check_degrees(recipe)
    check_microbatches(recipe)
    engine.check_watchdog(recipe)
    engine.check_guard(recipe)
    engine.check_profiler(recipe)


def _check_budget(recipe: Recipe) -> None:
    budget, degrees = recipe.budget, recipe.parallelism
    length, batch, ramp = budget.sequence_length, budget.global_batch_tokens, budget.ramp_up
    unit, name = length * degrees.num_replicas * degrees.microbatch_sequences, "sequence_length"
    check_multiple("budget.global_batch_tokens", batch, name, length, fitting=unit)
    total, name = budget.total_tokens, "budget.global_batch_tokens"
    check_at_least("budget.total_tokens", total, name, batch)
    if not isinstance(ramp, str):  # `BatchRamp` has the rules between its numbers
        name = "one microbatch per data rank,"
        check_multiple("budget.ramp_up.start_tokens", ramp.start_tokens, name, unit)
        check_multiple("budget.ramp_up.increment_tokens", ramp.increment_tokens, name, unit)


def _check_precision(precision: Precision) -> None:
    scale, compute, path = precision.loss_scale, precision.compute, "precision.loss_scale"
    if isinstance(scale, str):
        if compute == "float16":
            problem = "none, but float16 gradients underflow without a loss scale"
            raise RecipeError(path, problem, "set precision=fp16 or precision.compute=bfloat16")
    else:
        check_at_least(f"{path}.initial", scale.initial, "loss_scale.minimum", scale.minimum)
        if compute not in {"float16", "auto"}:
            problem = f"{compute} ignores a loss scale; only float16 uses it"
            raise RecipeError(path, problem, "set precision.loss_scale=none")
    _check_finer(precision)


def _check_finer(precision: Precision) -> None:
    """Refuse weights coarser than products, masters coarser than weights, unscaled sums."""
    compute = {"auto": "float32", engine.FLOAT8: "float32"}
    computed = compute.get(precision.compute, precision.compute)
    weights = computed if precision.weights == "auto" else precision.weights
    master = weights if precision.master == "auto" else precision.master
    for key, wide, narrow in (("weights", weights, computed), ("master", master, weights)):
        order = {"bfloat16": 0, "float16": 0, "float32": 1, "float64": 2}
        if wide != narrow and order[wide] <= order[narrow]:
            problem = f"{wide} cannot represent all {narrow} values"
            fix = f"set precision.{key}=auto, or precision.{key}={narrow}"
            raise RecipeError(f"precision.{key}", problem, fix)
    for key in ("accumulate", "reduce"):
        if getattr(precision, key) == "float16" and precision.compute != "float16":
            problem = "float16 gradients underflow without a loss scale"
            fix = f"set precision.{key}=float32 or precision=fp16"
            raise RecipeError(f"precision.{key}", problem, fix)


def check_data(data: DataSection, *, total_tokens: int) -> None:
    """Raise a RecipeError for shares, phases or sources that contradict each other."""
    if data.mixture == "given":
        _check_sum("data.shares", data.shares)
    elif data.shares:
        problem = f"{len(data.shares)} shares are set, but data.mixture computes the shares"
        raise RecipeError("data.shares", problem, "set data.shares={} or data.mixture=given")
    for name, phase in data.phases.items():
        check_phase_start(f"data.phases.{name}", phase, total_tokens)
        _check_sum(f"data.phases.{name}.shares", phase.shares)
    for name, source in data.sources.items():
        if name not in data.source_names:
            similar = suggest_similar(name, list(data.source_names))
            fix = f"set data.shares.{name}=...; {similar}"
            raise RecipeError(f"data.sources.{name}", "this source has no share", fix)
        _check_source(f"data.sources.{name}", source, data)
    # Token files and text of a run share a tokenizer, which is not trained on the text.
    tokens = [name for name, source in data.sources.items() if source.tokens]
    texts = [name for name, s in data.sources.items() if s.has_text and not s.tokens]
    if tokens and texts and data.tokenizer_folder == "none":
        problem = f"none, but {tokens[0]} has tokens and {texts[0]} has text for one tokenizer"
        fix = "set the folder that contains tokenizer.json or tokenizer.model"
        raise RecipeError("data.tokenizer_folder", problem, fix)


def check_phase_start(path: str, phase: PhaseStart, total_tokens: int) -> None:
    """Raise a RecipeError for a phase without exactly one start within the budget."""
    if (phase.from_tokens is None) == (phase.from_fraction is None):
        problem = "expected exactly one of from_tokens and from_fraction"
        raise RecipeError(path, problem, f"for example, set only {path}.from_fraction=0.9")
    first, name = phase.first_token(total_tokens), "budget.total_tokens - 1 ="
    check_at_most(f"{path}.from_tokens", first, name, total_tokens - 1)


def _check_loss_mask(data: DataSection, sequence_length: int) -> None:
    """Refuse a goldfish window above a sample, or unmarked ends for ``loss_after_eod``."""
    if not isinstance(data.goldfish, str):
        path, tokens = "data.goldfish.window_tokens", data.goldfish.window_tokens
        check_at_most(path, tokens, "budget.sequence_length", sequence_length)
    without = [name for name, source in data.sources.items() if source.eod == "absent"]
    if without and not data.loss_after_eod:
        problem = f"false, but documents of {without[0]} have no end token (eod: absent)"
        fix = "set data.loss_after_eod=true, or tokenize again with --append-eod"
        raise RecipeError("data.loss_after_eod", problem, fix)


def _check_sum(path: str, shares: Mapping[str, float]) -> None:
    total = sum(shares.values())
    if abs(total - 1) > SHARES_TOLERANCE:
        problem = f"{len(shares)} shares add up to {total:.6f}, not 1"
        fix = f"change one share by {1 - total:+.6f}, or divide each share by "
        fix = f"{fix}{total:.6f}" if total else "set at least one share above 0"
        raise RecipeError(path, problem, fix)


def _check_source(path: str, source: Source, data: DataSection) -> None:
    kinds = ("files", "embedded", "tokens", "dataset")
    origins = [kind for kind in kinds if getattr(source, kind)]
    if len(origins) > 1:
        raise RecipeError(
            path, f"{' and '.join(origins)} are mutually exclusive", "set only one of them"
        )
    if source.eod == "appended":
        return
    if not source.tokens:
        problem = "absent is valid only for a source with tokens"
        raise RecipeError(f"{path}.eod", problem, "remove this key")
    for key, needs, other in (
        ("document_mask", data.document_mask, "false"),
        ("packing", data.packing == "best_fit", "concatenate"),
    ):
        if needs:
            problem = f"absent, but data.{key} needs the end of each document"
            fix = f"set data.{key}={other}, or tokenize again with --append-eod"
            raise RecipeError(f"{path}.eod", problem, fix)


def check_schedule(schedule: Mapping[str, Any], path: str = "schedule") -> None:
    """Raise a RecipeError for invalid lengths or a falling warm-up, in any phase."""
    for name, phase in schedule.get("phases", {}).items():
        check_schedule(phase, f"{path}.phases.{name}")
    if "warmup_tokens" not in schedule:
        return
    warmup, total = schedule["warmup_tokens"], schedule.get("total_tokens")
    if total is not None:
        check_at_most(f"{path}.warmup_tokens", warmup, "total_tokens - 1 =", total - 1)
        decay, name = schedule.get("decay_tokens", 0), "total_tokens - warmup_tokens ="
        check_at_most(f"{path}.decay_tokens", decay, name, total - warmup)
        planned, skipped = schedule.get("planned_tokens"), schedule.get("skipped_tokens", 0)
        name = "total_tokens + skipped_tokens ="
        check_at_least(f"{path}.planned_tokens", planned or total, name, total + skipped)
    first = schedule.get("warmup_from", 0.0)
    for key in PEAKS:
        check_at_most(f"{path}.warmup_from", first, key, schedule.get(key, first))


def warnings_of(recipe: Recipe) -> tuple[str, ...]:
    """Return warnings about valid but expensive settings, as ``path: setting, and its cost``.

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
            f"span several nodes of {devices} devices; in the Ultra-Scale Playbook, the first "
            "such degree lost 43 % of the throughput, and the next doubling 66 % of the rest"
        )
    if recipe.precision.compute == engine.FLOAT8 and recipe.cluster.hardware != "none":
        lines.append(
            "precision.compute: the planner uses the time and memory of bfloat16 for float8, "
            "because no float8 run was measured"
        )
        if recipe.parallelism.compile == "none":
            lines.append(
                "parallelism.compile: with none, each cast to float8 is a separate pass over "
                "memory; torchao reports speedups (up to 1.25x on 8 GPUs) only for compiled "
                "layers"
            )
    return tuple(lines)
