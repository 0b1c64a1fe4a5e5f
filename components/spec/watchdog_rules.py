"""Rules of the watchdog: limits that contain each other, and restarts that a job can have."""

from typing import TYPE_CHECKING

from components.errors import RecipeError

if TYPE_CHECKING:
    from components.spec.recipe import Recipe


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
        raise RecipeError(
            "watchdog.restarts",
            f"{watchdog.restarts}, but a single rank here has no agent to start it again",
            "set watchdog.restarts=0, or cluster.ranks=2",
        )
    if cluster.spare_nodes:
        _check_spare_nodes(recipe)


def _check_spare_nodes(recipe: "Recipe") -> None:
    """Refuse nodes that can take no other's place, neither before the ranks start nor later."""
    cluster = recipe.cluster
    if cluster.scheduler == "none":
        raise RecipeError(
            "cluster.spare_nodes",
            f"{cluster.spare_nodes}, but without a scheduler there is no job to have them",
            "set cluster.spare_nodes=0",
        )
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
