"""Rules of guards, watchdog and profiler: what an engine can judge, limits within limits."""

from typing import TYPE_CHECKING

from components.errors import RecipeError

if TYPE_CHECKING:
    from components.config.schema.recipe import Recipe


def check_guard(recipe: "Recipe") -> None:
    """Hold what guards and rehearsals can do.

    Raises:
        RecipeError: a norm that no one knows in time, or a fault of no rank or no step.
    """
    guard, degrees = recipe.guard, recipe.parallelism
    if (
        not isinstance(guard.gradient_norm_spike, str)
        and degrees.engine == "deepspeed"
        and degrees.zero > 0
    ):
        raise RecipeError(
            "guard.gradient_norm_spike",
            f"DeepSpeed at zero={degrees.zero} tells the norm only after the update",
            "set guard.gradient_norm_spike=none, parallelism.zero=0 or parallelism.engine=mesh",
        )
    # Of a copy: who goes through layouts gives the recipe other degrees yet.
    steps = recipe.model_copy().derived.steps if guard.inject else 0
    limits = {"rank": recipe.cluster.ranks - 1, "step": steps}
    for number, fault in enumerate(guard.inject):
        for key, limit in limits.items():
            if (value := getattr(fault, key)) > limit:
                problem = f"{value}, but the last {key} is {limit}"
                remedy = f"choose one up to {limit}"
                raise RecipeError(f"guard.inject.{number}.{key}", problem, remedy)


def check_watchdog(recipe: "Recipe") -> None:
    """Hold the rules between the watchdog and the job.

    Raises:
        RecipeError: the first rule that is broken.
    """
    watchdog, cluster = recipe.watchdog, recipe.cluster
    if watchdog.pause_seconds < watchdog.step_seconds:
        raise RecipeError(
            "watchdog.pause_seconds",
            f"{watchdog.pause_seconds:g} is less than step_seconds {watchdog.step_seconds:g}, "
            "but the first step is a pause",
            f"set watchdog.pause_seconds={watchdog.step_seconds:g} or more",
        )
    if watchdog.restarts and cluster.ranks == 1 and cluster.scheduler == "none":
        problem = f"{watchdog.restarts}, but a single rank here has no agent to start it again"
        remedy = "set watchdog.restarts=0, or cluster.ranks=2"
        raise RecipeError("watchdog.restarts", problem, remedy)
    if cluster.spare_nodes:
        _check_spare_nodes(recipe)


def _check_spare_nodes(recipe: "Recipe") -> None:
    """Refuse nodes that can take no other's place, neither before the ranks start nor later."""
    cluster = recipe.cluster
    if cluster.scheduler == "none":
        problem = f"{cluster.spare_nodes}, but without a scheduler there is no job to have them"
        raise RecipeError("cluster.spare_nodes", problem, "set cluster.spare_nodes=0")
    if not isinstance(cluster.preflight, str):
        return
    if cluster.scheduler == "pbs":
        raise RecipeError(
            "cluster.spare_nodes",
            f"{cluster.spare_nodes}, but under pbs no job outlives a node, and none is looked "
            "at before",
            "leave cluster.preflight as it is, or set cluster.spare_nodes=0",
        )
    if not recipe.watchdog.restarts:
        raise RecipeError(
            "cluster.spare_nodes",
            f"{cluster.spare_nodes}, but a run that neither looks at its nodes nor starts "
            "again has no use for them",
            "leave cluster.preflight as it is, or set watchdog.restarts=3",
        )


def check_profiler(recipe: "Recipe") -> None:
    """Hold a profile to the steps and ranks that there are.

    Raises:
        RecipeError: a step or a rank beyond the last.
    """
    profiler = recipe.profiler
    if not profiler.steps:
        return
    # Of a copy: who goes through layouts gives the recipe other degrees yet.
    steps = recipe.model_copy().derived.steps
    last = profiler.first_step + profiler.steps - 1
    if last > steps:
        raise RecipeError(
            "profiler.first_step",
            f"{profiler.first_step} and profiler.steps {profiler.steps} end with step {last}, "
            f"but the last step is {steps}",
            f"set profiler.first_step={max(1, steps - profiler.steps + 1)} or less"
            if profiler.steps <= steps
            else f"set profiler.first_step=1 profiler.steps={steps} or less",
        )
    ranks = recipe.cluster.ranks
    if max(profiler.ranks) >= ranks:
        problem = f"there is no rank {max(profiler.ranks)}: the last rank is {ranks - 1}"
        raise RecipeError("profiler.ranks", problem, f"choose ranks up to {ranks - 1}")
