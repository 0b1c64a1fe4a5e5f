"""The scheduler of a cluster's profile."""

from cluster.pbs import Pbs
from cluster.scheduler import Scheduler
from cluster.slurm import Slurm
from components.config.schema.sections import Cluster
from components.errors import RecipeError


def scheduler_of(cluster: Cluster) -> Scheduler:
    """Return what speaks to the cluster's scheduler.

    Raises:
        RecipeError: it has none.
    """
    if cluster.scheduler == "slurm":
        return Slurm()
    if cluster.scheduler == "pbs":
        return Pbs()
    problem = f"{cluster.name} has no scheduler"
    raise RecipeError("cluster", problem, "name a batch cluster, or train here: action=train")
