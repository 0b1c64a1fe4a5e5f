"""Rules of what runs: what DeepSpeed or torchao cannot do, guards, watchdog and profiler."""

from math import log2

from components.config.recipe import Recipe
from components.config.schema.sections import Cluster, Parallelism
from components.errors import RecipeError

_TO_MESH = "or parallelism.engine=mesh"


def check_engine(recipe: Recipe) -> None:
    """Raise a RecipeError for the first thing that the chosen engine cannot do."""
    degrees = recipe.parallelism
    if degrees.engine == "mesh":
        if degrees.offload_optimizer:
            problem = "true, but the mesh engine keeps the optimizer's state on the device"
            remedy = "set offload_optimizer=false, or parallelism.engine=deepspeed"
            raise RecipeError("parallelism.offload_optimizer", problem, remedy)
        return
    if "newton_schulz_steps" in recipe.optimizer:
        problem = (
            "deepspeed, but its shards are no rows of matrices, and Muon updates whole ones"
        )
        remedy = "set parallelism.engine=mesh, or optimizer=adamw"
        raise RecipeError("parallelism.engine", problem, remedy)
    if recipe.shape.mlp.balance_rate is not None:
        problem = "deepspeed, but its checkpoints have no place for the biases of a router"
        remedy = "set parallelism.engine=mesh, or model.mlp.balance_rate=null"
        raise RecipeError("parallelism.engine", problem, remedy)
    _check_degrees(degrees)
    if (mask := recipe.cluster.rank_mask) is not None:
        problem = f"deepspeed, which takes the device of a rank's number, but {mask} hides it"
        remedy = f"set cluster.site.rank_environment={{}}, {_TO_MESH}"
        raise RecipeError("parallelism.engine", problem, remedy)
    compute, device = recipe.precision.compute, recipe.cluster.device
    if compute != "auto":
        check_precision(recipe, compute)
    elif device != "auto":
        check_precision(recipe, "float32" if device == "cpu" else "bfloat16")


def _check_degrees(degrees: "Parallelism") -> None:
    for axis in ("tensor", "pipeline", "expert", "context"):
        if (degree := getattr(degrees, axis)) > 1:
            problem = f"{degree}, but the deepspeed engine has data ranks alone"
            remedy = f"set parallelism.{axis}=1, {_TO_MESH}"
            raise RecipeError(f"parallelism.{axis}", problem, remedy)
    if degrees.zero and degrees.data_shard != degrees.data:
        ranks, remedy = degrees.data, f"set parallelism.data_shard={degrees.data}, {_TO_MESH}"
        problem = f"{degrees.data_shard}, but DeepSpeed shards over all {ranks} data ranks"
        raise RecipeError("parallelism.data_shard", problem, remedy)
    if degrees.offload_optimizer and degrees.zero == 0:
        problem = "true at zero=0, where DeepSpeed has no state of its own to move"
        remedy = "set parallelism.zero=1, or offload_optimizer=false"
        raise RecipeError("parallelism.offload_optimizer", problem, remedy)
    # Layers could not share a graph: a run would stop at the ninth.
    if degrees.compile != "none" and degrees.zero == 3:
        hooks = "at zero=3 DeepSpeed's hooks are inside of each layer"
        problem = f"{degrees.compile}, but {hooks}, and no two layers have a graph in common"
        remedy = f"set parallelism.compile=none, zero=2, {_TO_MESH}"
        raise RecipeError("parallelism.compile", problem, remedy)


def check_precision(recipe: Recipe, compute: str) -> None:
    """Raise a RecipeError for what DeepSpeed has not; ``compute`` is never ``auto`` here."""
    own = {"weights": compute, "master": "float32"}
    for key, only in own.items():
        if (value := getattr(recipe.precision, key)) not in {"auto", only}:
            problem = f"{value}, but beside {compute} products DeepSpeed has {only} {key}"
            raise RecipeError(
                f"precision.{key}", problem, f"set precision.{key}=auto, {_TO_MESH}"
            )
    for key, value in {**recipe.precision.model_dump(), "compute": compute}.items():
        if value == "float64":
            remedy = f"set precision.{key}=float32, {_TO_MESH}"
            raise RecipeError(f"precision.{key}", "float64 is unknown to DeepSpeed", remedy)
    if compute != "float32" and recipe.parallelism.zero == 0:
        weights = "float32 weights that can be saved only with ZeRO"
        problem = f"0, but in {compute} DeepSpeed keeps {weights}"
        raise RecipeError("parallelism.zero", problem, f"set parallelism.zero=1, {_TO_MESH}")
    accumulate = accumulate_dtype(recipe, compute)
    if accumulate not in {"float32", compute}:
        problem = f"{accumulate}, but beside {compute} weights DeepSpeed adds up in float32"
        remedy = f"set precision.accumulate=float32, {_TO_MESH}"
        raise RecipeError("precision.accumulate", problem, remedy)
    if compute != "float16":
        return
    scaling = recipe.precision.loss_scale
    assert not isinstance(scaling, str), "float16 without one is refused before"
    if scaling.initial < 1 or not log2(scaling.initial).is_integer():
        problem = f"{scaling.initial:,}, but DeepSpeed starts from a power of two"
        remedy = f"the nearest: {2.0 ** max(0, round(log2(scaling.initial))):,}"
        raise RecipeError("precision.loss_scale.initial", problem, remedy)
    if scaling.minimum < 1 or not scaling.minimum.is_integer():
        problem = f"{scaling.minimum}, but DeepSpeed takes whole numbers from 1 on"
        remedy = f"the nearest: {max(1.0, float(round(scaling.minimum)))}"
        raise RecipeError("precision.loss_scale.minimum", problem, remedy)


def accumulate_dtype(recipe: Recipe, compute: str) -> str:
    """Return the dtype of DeepSpeed's sums: float32 where ``compute: auto`` becomes float32."""
    precision = recipe.precision
    exact = precision.compute == "auto" and compute == "float32"
    return compute if exact else precision.accumulate


FLOAT8 = "float8"
# `torch._scaled_mm` asks it of both sides of a weight; what is emulated must run there too.
MULTIPLE = 16
_TO_BFLOAT16 = "precision.compute=bfloat16"


def check_float8(recipe: Recipe) -> None:
    """Raise a RecipeError for widths or a device without products in float8."""
    if recipe.precision.compute != FLOAT8:
        return
    shape = recipe.shape
    heads, experts = shape.attention, shape.mlp.num_experts
    widths = {
        "model.dim": shape.dim,
        "model.attention.head_dim": heads.num_heads * heads.head_dim,
        "model.attention.num_kv_heads": heads.num_kv_heads * heads.head_dim,
    }
    if heads.key_value_rank is not None:
        widths["model.attention.key_value_rank"] = heads.key_value_rank + heads.rotary_dim
        widths["model.attention.query_rank"] = heads.query_rank or MULTIPLE
        widths["model.attention.value_dim"] = heads.num_heads * heads.values
    if not experts:  # their products stay in bfloat16
        widths["model.mlp.ffn_dim"] = shape.mlp.ffn_dim
    for key, width in widths.items():
        if width % MULTIPLE:
            wants = f"products in {FLOAT8} want multiples of {MULTIPLE}"
            wider = width + MULTIPLE - width % MULTIPLE
            remedy = f"choose it so that they are {wider:,}, or set {_TO_BFLOAT16}"
            raise RecipeError(key, f"gives linear maps {width:,} wide, but {wants}", remedy)
    hardware = recipe.cluster.hardware
    if recipe.cluster.device == "cpu" or isinstance(hardware, str):
        return  # emulated, or known on the machine alone
    if FLOAT8 not in hardware.peak_teraflops:  # where devices have it, a profile states it
        stated = ", ".join(hardware.peak_teraflops)
        has = f"{hardware.device} has none: its profile states a peak in {stated}"
        remedy = f"set {_TO_BFLOAT16}, or choose a cluster whose devices have it"
        raise RecipeError("precision.compute", f"{FLOAT8}, but {has}", remedy)


def check_float8_layout(recipe: Recipe) -> None:
    """Raise a RecipeError where a rank has parts of rows, or no float32 weights to round."""
    degrees = recipe.parallelism
    if recipe.precision.compute != FLOAT8:
        return
    if degrees.engine != "mesh":
        rounds = f"rounds weights to bfloat16 before they could become {FLOAT8}"
        remedy = f"set parallelism.engine=mesh, or {_TO_BFLOAT16}"
        raise RecipeError("parallelism.engine", f"{degrees.engine}, which {rounds}", remedy)
    if degrees.tensor > 1:
        rows = f"in {FLOAT8} a row has one scale, and tensor ranks have parts of rows"
        remedy = f"set parallelism.tensor=1, or {_TO_BFLOAT16}"
        raise RecipeError("parallelism.tensor", f"{degrees.tensor}, but {rows}", remedy)


def check_guard(recipe: Recipe) -> None:
    """Raise a RecipeError for a norm known too late, or a fault of no rank or no step."""
    guard, degrees = recipe.guard, recipe.parallelism
    judged = not isinstance(guard.gradient_norm_spike, str)
    if judged and degrees.engine == "deepspeed" and degrees.zero > 0:
        problem = f"DeepSpeed at zero={degrees.zero} tells the norm only after the update"
        ways = "guard.gradient_norm_spike=none, parallelism.zero=0 or parallelism.engine=mesh"
        raise RecipeError("guard.gradient_norm_spike", problem, f"set {ways}")
    limits = {"rank": recipe.cluster.ranks - 1, "step": _steps(recipe) if guard.inject else 0}
    for number, fault in enumerate(guard.inject):
        for key, limit in limits.items():
            if (value := getattr(fault, key)) > limit:
                problem = f"{value}, but the last {key} is {limit}"
                remedy = f"choose one up to {limit}"
                raise RecipeError(f"guard.inject.{number}.{key}", problem, remedy)


def _steps(recipe: Recipe) -> int:
    # Of a copy: who goes through layouts gives the recipe other degrees yet.
    return recipe.model_copy().derived.steps


def check_watchdog(recipe: Recipe) -> None:
    """Raise a RecipeError for a watchdog or spare nodes that do not fit the job."""
    watchdog, cluster = recipe.watchdog, recipe.cluster
    if (pause := watchdog.pause_seconds) < (step := watchdog.step_seconds):
        problem = f"{pause:g} is less than step_seconds {step:g}, but the first step is a pause"
        remedy = f"set watchdog.pause_seconds={step:g} or more"
        raise RecipeError("watchdog.pause_seconds", problem, remedy)
    if watchdog.restarts and cluster.ranks == 1 and cluster.scheduler == "none":
        problem = f"{watchdog.restarts}, but a single rank here has no agent to start it again"
        remedy = "set watchdog.restarts=0, or cluster.ranks=2"
        raise RecipeError("watchdog.restarts", problem, remedy)
    if cluster.spare_nodes:
        _check_spare_nodes(cluster, restarts=watchdog.restarts)


def _check_spare_nodes(cluster: Cluster, *, restarts: int) -> None:
    """Refuse nodes that can take no other's place, neither before the ranks start nor later."""
    unseen, keep = cluster.preflight == "none", "leave cluster.preflight as it is, or set"
    if cluster.scheduler == "none":
        problem = "without a scheduler there is no job to have them"
        remedy = "set cluster.spare_nodes=0"
    elif unseen and not restarts:
        problem = "a run that neither looks at its nodes nor starts again has no use for them"
        remedy = f"{keep} watchdog.restarts=3"
    else:
        return
    raise RecipeError("cluster.spare_nodes", f"{cluster.spare_nodes}, but {problem}", remedy)


def check_profiler(recipe: Recipe) -> None:
    """Raise a RecipeError for a step or a rank beyond the last."""
    profiler = recipe.profiler
    if not profiler.steps:
        return
    steps = _steps(recipe)
    last = profiler.first_step + profiler.steps - 1
    if last > steps:
        given = f"{profiler.first_step} and profiler.steps {profiler.steps}"
        problem = f"{given} end with step {last}, but the last step is {steps}"
        fitting = f"{max(1, steps - profiler.steps + 1)}"
        if profiler.steps > steps:
            fitting = f"1 profiler.steps={steps}"
        remedy = f"set profiler.first_step={fitting} or less"
        raise RecipeError("profiler.first_step", problem, remedy)
    ranks = recipe.cluster.ranks
    if max(profiler.ranks) >= ranks:
        problem = f"there is no rank {max(profiler.ranks)}: the last rank is {ranks - 1}"
        raise RecipeError("profiler.ranks", problem, f"choose ranks up to {ranks - 1}")
