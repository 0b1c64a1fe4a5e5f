"""Rules of the engine: limits of DeepSpeed and torchao, guards, watchdog and profiler."""

from math import log2

from components.config.limits import check_at_least, check_at_most
from components.config.recipe import Recipe
from components.config.schema.sections import Parallelism
from components.errors import RecipeError

_TO_MESH = "or parallelism.engine=mesh"


def check_engine(recipe: Recipe) -> None:
    """Raise a RecipeError for the first setting that the engine does not support."""
    degrees, path = recipe.parallelism, "parallelism.engine"
    if degrees.engine == "mesh":
        if degrees.offload_optimizer:
            problem = "true, but the mesh engine keeps optimizer state on the device"
            fix = "set parallelism.offload_optimizer=false or parallelism.engine=deepspeed"
            raise RecipeError("parallelism.offload_optimizer", problem, fix)
        return
    if "newton_schulz_steps" in recipe.optimizer:
        problem = "Muon updates whole matrices, but DeepSpeed's shards are flat"
        raise RecipeError(path, problem, "set parallelism.engine=mesh or optimizer=adamw")
    if recipe.decoder_spec.mlp.balance_rate is not None:
        problem = "DeepSpeed checkpoints cannot store router biases"
        fix = "set parallelism.engine=mesh or model.mlp.balance_rate=null"
        raise RecipeError(path, problem, fix)
    _check_degrees(degrees)
    if (mask := recipe.cluster.rank_mask) is not None:
        problem = f"DeepSpeed needs all devices of a node, but {mask} hides some"
        fix = f"set cluster.site.rank_environment={{}}, {_TO_MESH}"
        raise RecipeError(path, problem, fix)
    compute, device = recipe.precision.compute, recipe.cluster.device
    if compute != "auto":
        check_precision(recipe, compute)
    elif device != "auto":
        check_precision(recipe, "float32" if device == "cpu" else "bfloat16")


def _check_degrees(degrees: Parallelism) -> None:
    for axis in ("tensor", "pipeline", "expert", "context"):
        if (degree := getattr(degrees, axis)) > 1:
            problem = f"{degree}, but DeepSpeed supports only data ranks"
            fix = f"set parallelism.{axis}=1, {_TO_MESH}"
            raise RecipeError(f"parallelism.{axis}", problem, fix)
    if degrees.zero and degrees.data_shard != degrees.data:
        fix = f"set parallelism.data_shard={degrees.data}, {_TO_MESH}"
        problem = f"{degrees.data_shard}, but DeepSpeed shards over all {degrees.data} ranks"
        raise RecipeError("parallelism.data_shard", problem, fix)
    if degrees.offload_optimizer and degrees.zero == 0:
        problem = "true, but DeepSpeed cannot offload optimizer state at zero=0"
        fix = "set parallelism.zero=1 or parallelism.offload_optimizer=false"
        raise RecipeError("parallelism.offload_optimizer", problem, fix)
    # Layers could not share a graph: a run would stop at the ninth.
    if degrees.compile != "none" and degrees.zero == 3:
        problem = f"{degrees.compile}, but DeepSpeed's hooks at zero=3 break compiled graphs"
        fix = f"set parallelism.compile=none, parallelism.zero=2, {_TO_MESH}"
        raise RecipeError("parallelism.compile", problem, fix)


def check_precision(recipe: Recipe, compute: str) -> None:
    """Raise a RecipeError for dtypes that DeepSpeed lacks; ``compute`` is not ``auto`` here."""
    dtypes = {**recipe.precision.model_dump(), "compute": compute}
    sums = {"float32", compute}
    allowed = {"weights": {"auto", compute}, "master": {"auto", "float32"}, "accumulate": sums}
    actual = dtypes | {"accumulate": accumulate_dtype(recipe, compute)}
    for key, values in allowed.items():
        if actual[key] not in values:
            legal = " or ".join(sorted(values))
            problem = f"{actual[key]}, but DeepSpeed with {compute} supports only {legal}"
            fix = f"set precision.{key}={legal.partition(' ')[0]}, {_TO_MESH}"
            raise RecipeError(f"precision.{key}", problem, fix)
    for key, value in dtypes.items():
        if value == "float64":
            fix = f"set precision.{key}=float32, {_TO_MESH}"
            raise RecipeError(f"precision.{key}", "DeepSpeed does not support float64", fix)
    if compute != "float32" and recipe.parallelism.zero == 0:
        problem = f"0, but DeepSpeed saves float32 weights of {compute} only with ZeRO"
        raise RecipeError("parallelism.zero", problem, f"set parallelism.zero=1, {_TO_MESH}")
    scaling = recipe.precision.loss_scale
    if compute != "float16" or isinstance(scaling, str):
        return
    initial, minimum = scaling.initial, scaling.minimum
    for key, value, nearest, kind in (
        ("initial", initial, 2.0 ** max(0, round(log2(initial))), "a power of two"),
        ("minimum", minimum, max(1.0, float(round(minimum))), "an integer"),
    ):
        if value != nearest:
            problem = f"{value:,}, but DeepSpeed requires {kind}, at least 1"
            raise RecipeError(
                f"precision.loss_scale.{key}", problem, f"nearest valid value: {nearest:,}"
            )


def accumulate_dtype(recipe: Recipe, compute: str) -> str:
    """Return the dtype of DeepSpeed's sums: float32 if ``compute: auto`` becomes float32."""
    precision = recipe.precision
    exact = precision.compute == "auto" and compute == "float32"
    return compute if exact else precision.accumulate


FLOAT8 = "float8"
# `torch._scaled_mm` needs this for both dimensions of a weight; emulated runs must fit it too.
MULTIPLE = 16
_TO_BFLOAT16 = "or precision.compute=bfloat16"


def check_float8(recipe: Recipe) -> None:
    """Raise a RecipeError for widths or a device that do not support float8 products."""
    if recipe.precision.compute != FLOAT8:
        return
    shape = recipe.decoder_spec
    heads, experts = shape.attention, shape.mlp.num_experts
    widths = {
        "model.dim": shape.dim,
        "model.attention.head_dim": heads.num_heads * heads.head_dim,
        "model.attention.num_kv_heads": heads.num_kv_heads * heads.head_dim,
    }
    if shape.mixers:
        problem = "float8, but the maps of linear mixers have rows of one number per head"
        raise RecipeError(
            "precision.compute", problem, f"set model.mixers={{}}, {_TO_BFLOAT16}"
        )
    if heads.key_value_rank is not None:
        widths["model.attention.key_value_rank"] = heads.key_value_rank + heads.rotary_dim
        widths["model.attention.query_rank"] = heads.query_rank or MULTIPLE
        widths["model.attention.value_dim"] = heads.num_heads * heads.value_width
    if not experts:  # their products stay in bfloat16
        widths["model.mlp.ffn_dim"] = shape.mlp.ffn_dim
    for key, width in widths.items():
        if width % MULTIPLE:
            problem = (
                f"width {width:,} of a linear map is not a multiple of {MULTIPLE} (float8)"
            )
            wider = width + MULTIPLE - width % MULTIPLE
            raise RecipeError(key, problem, f"set this width to {wider:,}, {_TO_BFLOAT16}")
    hardware = recipe.cluster.hardware
    if recipe.cluster.device == "cpu" or isinstance(hardware, str):
        return  # emulated, or known only on the machine
    if FLOAT8 not in hardware.peak_teraflops:  # profiles of float8 devices state it
        problem = f"float8, but the profile of {hardware.device} has no float8 peak"
        fix = f"use another cluster, {_TO_BFLOAT16}"
        raise RecipeError("precision.compute", problem, fix)


def check_float8_layout(recipe: Recipe) -> None:
    """Raise a RecipeError for float8 with parts of rows on a rank, or no float32 weights."""
    degrees = recipe.parallelism
    if recipe.precision.compute != FLOAT8:
        return
    if degrees.engine != "mesh":
        problem = f"{degrees.engine} rounds weights to bfloat16 before float8"
        fix = f"set parallelism.engine=mesh, {_TO_BFLOAT16}"
        raise RecipeError("parallelism.engine", problem, fix)
    if degrees.tensor > 1:
        problem = f"{degrees.tensor} would split rows, but a float8 row has one scale"
        raise RecipeError("parallelism.tensor", problem, f"set tensor to 1, {_TO_BFLOAT16}")


def check_guard(recipe: Recipe) -> None:
    """Raise a RecipeError for a norm known too late, or a fault at an absent rank or step."""
    guard, degrees = recipe.guard, recipe.parallelism
    judged = not isinstance(guard.gradient_norm_spike, str)
    if judged and degrees.engine == "deepspeed" and degrees.zero > 0:
        problem = f"DeepSpeed at zero={degrees.zero} computes the norm only after the update"
        fix = (
            "set guard.gradient_norm_spike=none, parallelism.zero=0 or parallelism.engine=mesh"
        )
        raise RecipeError("guard.gradient_norm_spike", problem, fix)
    for number, fault in enumerate(guard.inject):
        path = f"guard.inject.{number}"
        check_at_most(f"{path}.rank", fault.rank, "the last rank", recipe.cluster.ranks - 1)
        check_at_most(f"{path}.step", fault.step, "the last step", _steps(recipe))


def _steps(recipe: Recipe) -> int:
    # Copy the recipe: ``derived`` is cached, and a layout search changes the degrees later.
    return recipe.model_copy().derived_numbers.steps


def check_watchdog(recipe: Recipe) -> None:
    """Raise a RecipeError for a watchdog or spare nodes that do not fit the job."""
    watchdog, cluster = recipe.watchdog, recipe.cluster
    pause, name = watchdog.pause_seconds, "watchdog.step_seconds"
    check_at_least("watchdog.pause_seconds", pause, name, watchdog.step_seconds)
    if watchdog.restarts and cluster.ranks == 1 and cluster.scheduler == "none":
        problem = f"{watchdog.restarts}, but a single local rank has no agent that restarts it"
        raise RecipeError("watchdog.restarts", problem, "set it to 0, or set cluster.ranks=2")
    if not cluster.spare_nodes:
        return
    path, nodes = "cluster.spare_nodes", cluster.spare_nodes
    if cluster.scheduler == "none":
        problem = f"{nodes}, but spare nodes need a scheduler"
        raise RecipeError(path, problem, "set cluster.spare_nodes=0")
    if cluster.preflight == "none" and not watchdog.restarts:
        problem = f"{nodes}, but a run without preflight and restarts cannot use spare nodes"
        raise RecipeError(path, problem, "set watchdog.restarts=3 or cluster.preflight")


def check_profiler(recipe: Recipe) -> None:
    """Raise a RecipeError for a profiler step or rank beyond the last."""
    profiler = recipe.profiler
    if not profiler.steps:
        return
    steps = _steps(recipe)
    check_at_most("profiler.steps", profiler.steps, "the number of steps of the run,", steps)
    name = "the last valid first step for profiler.steps,"
    check_at_most("profiler.first_step", profiler.first_step, name, steps - profiler.steps + 1)
    check_at_most(
        "profiler.ranks", max(profiler.ranks), "the last rank", recipe.cluster.ranks - 1
    )
