"""The client of a cluster's scheduler."""

from cluster.pbs import Pbs
from cluster.scheduler import Scheduler
from cluster.slurm import Slurm
from components.config.schema.sections import Cluster
from components.errors import RecipeError


def scheduler_for(cluster: Cluster) -> Scheduler:
    """Return the client of the cluster's scheduler."""
    if cluster.scheduler == "none":
        fix = "set cluster=NAME with a scheduler, or train here with action=train"
        raise RecipeError("cluster", f"{cluster.name} has no scheduler", fix)
    return Slurm() if cluster.scheduler == "slurm" else Pbs()
