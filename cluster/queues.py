"""Choose the queue of a job and the hours that it asks for, within the profile's limits."""

from dataclasses import dataclass

from components.config.schema.cluster import QueueSection
from components.config.schema.sections import Cluster
from components.errors import RecipeError

SMOKE_HOURS = 0.5


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where a job goes and for how long; ``queue`` is None where nobody has named one."""

    queue: str | None
    hours: float


def choose_slot(cluster: Cluster, *, wanted: str | None, needed_hours: float | None) -> Slot:
    """Take the user's queue, else the fitting one with the tightest limit.

    ``needed_hours`` are the whole run's, if they are known: a job asks for no more than these,
    rounded up, and an hour to start. Queues for debugging are taken where no other fits.

    Raises:
        RecipeError: no queue takes so many nodes, or none for so long.
    """
    hours = None if isinstance(cluster.hours, str) else cluster.hours
    if cluster.smoke:
        hours = min(hours or SMOKE_HOURS, SMOKE_HOURS)
    listed = [queue for queue in cluster.queues if wanted in {None, queue.name, queue.route}]
    if not listed:
        return Slot(queue=wanted or _unlisted(cluster), hours=_demand(cluster, hours))
    fitting = _of_size(cluster, listed)
    if cluster.smoke:
        queue = min(fitting, key=lambda queue: (not queue.debug, queue.longest_hours))
        return Slot(
            queue=queue.route or queue.name, hours=min(SMOKE_HOURS, queue.longest_hours)
        )
    fitting = [queue for queue in fitting if not queue.debug] or fitting
    longest = max(queue.longest_hours for queue in fitting)
    if hours is None:
        hours = longest if needed_hours is None else min(longest, int(needed_hours) + 2)
    if hours > longest:
        names = ", ".join(queue.name for queue in fitting)
        raise RecipeError(
            "cluster.hours",
            f"{hours:g}, but for {cluster.nodes:,} nodes {names} allow at most {longest:g}",
            f"set cluster.hours={longest:g}: the run goes on in the next job",
        )
    long_enough = [queue for queue in fitting if queue.longest_hours >= hours]
    queue = min(long_enough, key=lambda queue: queue.longest_hours)
    return Slot(queue=queue.route or queue.name, hours=hours)


def _unlisted(cluster: Cluster) -> str | None:
    return None if isinstance(cluster.site, str) else cluster.site.queue


def _demand(cluster: Cluster, hours: float | None) -> float:
    """Where no limit is known, somebody has to say how long."""
    if hours is None:
        raise RecipeError(
            "cluster.hours",
            f"the profile of {cluster.name} knows no limit of this queue",
            "set cluster.hours=...: how long one job may run",
        )
    return hours


def _of_size(cluster: Cluster, queues: list[QueueSection]) -> list[QueueSection]:
    """Keep the queues that take so many nodes."""
    nodes = cluster.nodes
    fitting = [queue for queue in queues if queue.fewest_nodes <= nodes <= queue.most_nodes]
    if not fitting:
        limits = ", ".join(
            f"{queue.name} {queue.fewest_nodes:,} to {queue.most_nodes:,}" for queue in queues
        )
        raise RecipeError(
            "cluster.nodes",
            f"no queue of {cluster.name} takes {nodes:,} nodes: {limits}",
            "choose other degrees, parallelism.data=... first; or name another site.queue=...",
        )
    return fitting
