"""Queues: which take a job of so many nodes, for how long, and how many jobs of one user.

A queue for debugging, or one that a site grants by request, is taken where no other fits. A
chain needs a queue in which a job's successor may wait while it runs.
"""

from collections.abc import Iterable, Sequence
from math import ceil

from components.config.schema.cluster import QueueSection
from components.config.schema.sections import Cluster
from components.errors import RecipeError

DEGREES = "parallelism.data=... first"


def takes(cluster: Cluster, queue: QueueSection) -> bool:
    """Whether a job of the cluster's nodes may go to ``queue``."""
    return queue.fewest_nodes <= cluster.nodes <= queue.most_nodes


def queues_on(
    cluster: Cluster, listed: Iterable[QueueSection] | None = None
) -> list[QueueSection]:
    """List the queues that take the cluster's nodes, each with the hours that it gives them.

    Of those ``listed``, or of all, only the most usual kind is returned: the queues for
    everybody, else those by request, else those for debugging.
    """
    fitting = [
        queue.model_copy(update={"longest_hours": queue.hours_on(cluster.nodes)})
        for queue in (cluster.queues if listed is None else listed)
        if takes(cluster, queue)
    ]
    usual = min(map(_kind, fitting), default=None)
    return [queue for queue in fitting if _kind(queue) == usual]


def _kind(queue: QueueSection) -> tuple[bool, bool]:
    return queue.debug, queue.by_request is not None


def longest_queue(cluster: Cluster) -> QueueSection | None:
    """Choose, of the queues that take the cluster's nodes, the one of the longest jobs."""
    return max(queues_on(cluster), key=lambda queue: queue.longest_hours, default=None)


def queue_of_run(cluster: Cluster) -> QueueSection | None:
    """Choose the queue for the jobs of a run, with their spare nodes."""
    return longest_queue(with_spares(cluster))


def with_spares(cluster: Cluster) -> Cluster:
    """Return the cluster as a job with its spare nodes sees it."""
    return with_nodes(cluster, cluster.nodes + cluster.spare_nodes)


def most_chained(cluster: Cluster, queue: QueueSection | None) -> int | None:
    """Count the jobs that a chain may have in ``queue``; None: as many as it needs.

    On Slurm a chain is an array, each of whose tasks counts as submitted; on PBS a job and its
    successor do.
    """
    if queue is None:
        return None
    if not queue.chain:
        return 1
    if queue.submitted is None or cluster.scheduler == "slurm":
        return queue.submitted
    return 1 if queue.submitted == 1 else None


def submitted_jobs(cluster: Cluster, jobs: int) -> int:
    """Count how many of a chain's ``jobs`` are submitted at a time."""
    return jobs if cluster.scheduler == "slurm" else min(jobs, 2)


def takes_runs(cluster: Cluster, nodes: int) -> bool:
    """Whether a run of many jobs may have so many nodes, as far as the profile knows."""
    usual = queues_on(with_nodes(cluster, nodes))
    return not cluster.queues or any(_carries(cluster, queue) for queue in usual)


def with_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """Return the cluster as a job of so many nodes sees it."""
    return cluster.model_copy(update={"nodes": nodes})


def nearest_nodes(cluster: Cluster, nodes: int, hours: float = 0.0) -> list[int]:
    """List the numbers nearest to ``nodes``, below and above, that take a run of many jobs.

    One chain there holds so many ``hours``.
    """
    carrying = [
        q for q in cluster.queues if _carries(cluster, q, hours) and q.by_request is None
    ]
    below = [queue.most_nodes for queue in carrying if queue.most_nodes < nodes]
    above = [queue.fewest_nodes for queue in carrying if queue.fewest_nodes > nodes]
    return [*sorted(below)[-1:], *sorted(above)[:1]]


def no_queue(cluster: Cluster, listed: Sequence[QueueSection]) -> RecipeError:
    """Return the error that none of the ``listed`` queues takes the cluster's nodes."""
    nodes = cluster.nodes
    sizes = [f"{one.name} {one.fewest_nodes:,} to {one.most_nodes:,}" for one in listed]
    problem = f"no queue of {cluster.name} takes {nodes:,} nodes: {', '.join(sizes)}"
    ways = _ways(cluster, None)
    remedy = f"{ways}: {DEGREES}" if ways else f"choose other degrees, {DEGREES}"
    return RecipeError("cluster.nodes", problem, f"{remedy}; or name another site.queue=...")


def queue_remark(
    cluster: Cluster, queue: QueueSection | None, jobs: int | None
) -> RecipeError | None:
    """Say what limit of ``queue`` a run of ``jobs`` jobs meets, with the nearest way out.

    Nothing is returned where it meets none. ``jobs`` is null where nobody knows.
    """
    if queue is None:
        none = cluster.queues and not queues_on(cluster)
        return no_queue(cluster, [*cluster.queues]) if none else None
    most, needed = most_chained(cluster, queue), jobs or 1
    if most is not None and needed > most:
        return _too_many(cluster, queue, needed, most)
    if queue.by_request is None:
        return None
    problem = f"{cluster.nodes:,}: {queue.name} is by request ({queue.by_request})"
    ways = _ways(cluster, queue)
    return RecipeError("cluster.nodes", problem, ways and f"without one: {ways}")


def _too_many(cluster: Cluster, queue: QueueSection, needed: int, most: int) -> RecipeError:
    """Say that one chain does not hold the run: who submits what, how often."""
    where = f"{queue.name} gives"
    if not takes_runs(cluster, cluster.nodes):
        where = f"for {_gap(cluster)} {cluster.name} has only {queue.name},"
    limit = "where no job may wait for another"
    if queue.chain:
        jobs = "one job" if most == 1 else f"{most:,} jobs"
        limit = f"to {jobs} of a user, running or waiting"
    effort = f"no chain, each of the run's {needed:,} jobs is submitted by hand (again=true)"
    if most > 1:
        times = ceil(needed / most)
        effort = f"the run's {needed:,} jobs are submitted in {times:,} chains (again=true)"
    problem = f"{cluster.nodes:,}: {where} {queue.longest_hours:g} h, {limit}: {effort}"
    ways = _ways(cluster, queue, needed * queue.longest_hours)
    remedy = f"what takes the whole chain: {ways}"
    none = f"no queue of {cluster.name} takes the whole chain"
    return RecipeError("cluster.nodes", problem, remedy if ways else none)


def _gap(cluster: Cluster) -> str:
    """Write between which numbers of nodes the cluster's lie that no chain may have."""
    nodes, near = cluster.nodes, nearest_nodes(cluster, cluster.nodes)
    low = max((one + 1 for one in near if one < nodes), default=1)
    high = min((one - 1 for one in near if one > nodes), default=None)
    return f"{low:,} nodes and more" if high is None else f"{low:,} to {high:,} nodes"


def _ways(cluster: Cluster, taken: QueueSection | None, hours: float = 0.0) -> str:
    """Write which other queue takes a chain of these nodes, else the nearest nodes that do.

    The chain has so many ``hours``.
    """
    for queue in queues_on(cluster):
        other = taken is None or queue.name != taken.name
        if other and _carries(cluster, queue, hours) and queue.by_request is None:
            return f"site.queue={queue.route or queue.name}, {queue.longest_hours:g} h"
    ways = []
    for near in nearest_nodes(cluster, cluster.nodes, hours):
        longest = longest_queue(with_nodes(cluster, near))
        assert longest is not None, "it is the border of a queue"
        verb = "cut to" if near < cluster.nodes else "raise to"
        name = longest.route or longest.name
        ways.append(f"{verb} {near:,} ({name}, {longest.longest_hours:g} h)")
    return " or ".join(ways)


def _carries(cluster: Cluster, queue: QueueSection, hours: float = 0.0) -> bool:
    """Whether a queue is for runs of many jobs, and one chain in it has so many ``hours``."""
    most = most_chained(cluster, queue)
    return not queue.debug and (
        most is None or (most > 1 and most * queue.longest_hours >= hours)
    )
