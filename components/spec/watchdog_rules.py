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
    if not cluster.spare_nodes:
        return
    if cluster.scheduler != "slurm":
        raise RecipeError(
            "cluster.spare_nodes",
            f"{cluster.spare_nodes}, but under {cluster.scheduler} no job outlives a node",
            "set cluster.spare_nodes=0: the next job of the chain goes on",
        )
    if not watchdog.restarts:
        raise RecipeError(
            "cluster.spare_nodes",
            f"{cluster.spare_nodes}, but a run that never starts again has no use for them",
            "set watchdog.restarts=3, or cluster.spare_nodes=0",
        )
