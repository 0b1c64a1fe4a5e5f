"""Request of a site card: change a recipe to a short run of full width in two launches.

The run has as many layers as fit and the recipe's degrees as far as its ranks allow. It takes
:data:`STEPS` steps, saves, starts again from the checkpoint, and takes the remaining steps.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import gcd
from typing import Any

from command.arguments import Arguments
from command.composition.compose import compose_run
from components.config.recipe import Recipe
from components.config.schema.sections import AXES
from components.errors import RecipeError
from components.planner.interruptions import checkpoint_bytes
from components.planner.plan import plan_recipe
from components.run.site_card import CardSizes

STEPS, RESTART_STEPS = 30, 2
MOST_NODES, JOB_HOURS, SPARE_SECONDS = 2, 1 / 6, 60
MOST_STEPS_SECONDS = 240.0  # of the job's ten minutes
MOST_CHECKPOINT_BYTES = 160e9  # two are written and one is read: minutes at 2 GB/s
CALLBACK = "components.train.callbacks.site_card.SiteCardCallback"
Values = dict[str, Any]


def shape_card(arguments: Arguments) -> Arguments:
    """Return the arguments of a card's run. Keys of the user keep their values."""
    if arguments.searches:
        problem = "card=true measures the recipe's layout"
        raise RecipeError("parallelism", problem, "remove parallelism=auto")
    base = compose_run(arguments).recipe
    values = _values(base, _choose_sizes(arguments, base))
    return replace(arguments, values=values | arguments.values)


def compose_card(arguments: Arguments, sizes: CardSizes) -> Recipe:
    """Compose the run of a card with these sizes from the recipe that ``arguments`` name."""
    return _compose(arguments, _values(compose_run(arguments).recipe, sizes))


def _compose(arguments: Arguments, values: Mapping[str, Any]) -> Recipe:
    return compose_run(replace(arguments, values={**values, **arguments.values})).recipe


def _choose_sizes(arguments: Arguments, base: Recipe) -> CardSizes:
    """Choose nodes, degrees, layers and batch. A miniature keeps its own layers and batch."""
    cluster = base.cluster
    nodes = min(cluster.nodes, MOST_NODES)
    if cluster.scheduler != "none" and "cluster.nodes" not in arguments.values:
        nodes = min(MOST_NODES, max((q.most_nodes for q in cluster.queues), default=MOST_NODES))
    if base.scale.shrink != "none":
        small = _compose(arguments, {**_cluster_values(base, nodes), **_budget_values(base, 0)})
        return CardSizes.from_recipe(small)
    degrees, free = dict[str, int](), nodes * cluster.devices_per_node
    for axis in ("tensor", "pipeline", "expert", "context"):
        degrees[axis] = gcd(getattr(base.parallelism, axis), free)
        free //= degrees[axis]
    sizes = CardSizes(
        nodes=nodes,
        devices_per_node=cluster.devices_per_node,
        data=free,
        **degrees,
        num_layers=base.model["num_layers"],
        microbatch_sequences=base.parallelism.microbatch_sequences,
        global_batch_tokens=1,
    )
    return _fit_batch(arguments, base, _fit_layers(arguments, base, sizes))


def _with_microbatches(base: Recipe, sizes: CardSizes, microbatches: int) -> CardSizes:
    sequences = sizes.data * sizes.expert * sizes.microbatch_sequences * microbatches
    tokens = sequences * base.budget.sequence_length
    return sizes.model_copy(update={"global_batch_tokens": tokens})


def _fit_layers(arguments: Arguments, base: Recipe, sizes: CardSizes) -> CardSizes:
    """Find the largest number of layers that fits, in equal stages, by bisection."""
    sizes = _with_microbatches(base, sizes, sizes.pipeline)
    if "model.num_layers" in arguments.values:
        return sizes
    stages = sizes.pipeline * (base.parallelism.stages_per_rank if sizes.pipeline > 1 else 1)
    low, high = 0, sizes.num_layers // stages
    while low < high:
        middle = (low + high + 1) // 2
        tried = sizes.model_copy(update={"num_layers": middle * stages})
        if _fits(_compose(arguments, _values(base, tried))):
            low = middle
        else:
            high = middle - 1
    if low == 0:
        most = f"its checkpoint exceeds {MOST_CHECKPOINT_BYTES / 1e9:g} GB"
        problem = f"one layer per stage does not fit on {sizes.nodes} nodes, or {most}"
        remedy = "set cluster.nodes=4 or model.num_layers=..., or choose a smaller recipe"
        raise RecipeError("card", problem, remedy)
    return sizes.model_copy(update={"num_layers": low * stages})


def _fits(recipe: Recipe) -> bool:
    plan = plan_recipe(recipe)
    is_small = checkpoint_bytes(plan.job) <= MOST_CHECKPOINT_BYTES
    return is_small and plan.largest_memory.memory_verdict == "fits"


def _fit_batch(arguments: Arguments, base: Recipe, sizes: CardSizes) -> CardSizes:
    """Choose up to four microbatches per stage, so that the steps take a few minutes."""
    for count in (4, 2):
        tried = _with_microbatches(base, sizes, count * sizes.pipeline)
        if tried.global_batch_tokens > base.budget.global_batch_tokens:
            continue
        time = plan_recipe(_compose(arguments, _values(base, tried))).time
        if time is not None and time.total_seconds * STEPS <= MOST_STEPS_SECONDS:
            return tried
    return sizes


def _values(base: Recipe, sizes: CardSizes) -> Values:
    """Return the values of all keys that a card's run changes."""
    layers, model = sizes.num_layers, base.model
    values = {
        **_cluster_values(base, sizes.nodes),
        **_budget_values(base, sizes.global_batch_tokens),
        **{f"parallelism.{axis}": getattr(sizes, axis) for axis in AXES},
        "parallelism.data_shard": sizes.data * sizes.expert,
        "parallelism.microbatch_sequences": sizes.microbatch_sequences,
        "parallelism.recompute_every": min(base.parallelism.recompute_every, layers),
        "model.num_layers": layers,
    }
    if sizes.pipeline == 1:
        values |= {"parallelism.schedule": "1f1b", "parallelism.stages_per_rank": 1}
    if (every := model["positions"].get("skip_every")) is not None:
        values["model.positions.skip_every"] = min(every, layers)
    if windows := model["attention"].get("windows"):
        values["model.attention.windows"] = list(windows)[-layers:]
    if (dense := model.get("num_dense_layers")) is not None:
        values["model.num_dense_layers"] = min(dense, max(layers - 1, 0))
    return values


def _cluster_values(base: Recipe, nodes: int) -> Values:
    if base.cluster.scheduler == "none":
        return {}
    values: Values = {
        "cluster.nodes": nodes,
        "cluster.hours": JOB_HOURS,
        "cluster.jobs": 2,  # the second only if the first has no time left for the restart
        "cluster.spare_nodes": 0,
        "watchdog.restarts": 1,
    }
    if not isinstance(base.cluster.site, str):
        values["cluster.site.spare_seconds"] = SPARE_SECONDS
    return values


def _budget_values(base: Recipe, batch_tokens: int) -> Values:
    """Return the values of budget, phases and intervals; without a batch, only of phases."""
    values: Values = {
        "budget.ramp_up": "none",
        "phases": {},
        "data.phases": {},
        "callbacks": {"card": {"_target_": CALLBACK, "_partial_": True}},
        "evaluation.max_windows_per_source": 1,
        "checkpoint.keep": 1,
    }
    if base.children:
        values["children"] = {}
    if base.start is not None:
        values["from"] = None
    if batch_tokens:
        first, total = STEPS * batch_tokens, (STEPS + RESTART_STEPS) * batch_tokens
        values |= {
            "budget.global_batch_tokens": batch_tokens,
            "budget.total_tokens": total,
            "phases": {"restart": {"from_tokens": first}},
            "checkpoint.every_tokens": first,
            "evaluation.every_tokens": total,
        }
    return values
