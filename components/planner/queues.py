"""Queues of a cluster: allowed node counts, time limits, and number of jobs per user.

Debug queues and queues by request are used only if no other queue fits. A chain needs a queue
that lets a job's successor wait while the job runs.
"""

from collections.abc import Iterable, Sequence
from math import ceil

from components.config.schema.cluster import QueueSection
from components.config.schema.sections import Cluster
from components.errors import RecipeError

DEGREES = "parallelism.data=... first"


def can_accept_job(cluster: Cluster, queue: QueueSection) -> bool:
    """Whether ``queue`` accepts a job with the cluster's number of nodes."""
    return queue.fewest_nodes <= cluster.nodes <= queue.most_nodes


def queues_on(
    cluster: Cluster, listed: Iterable[QueueSection] | None = None
) -> list[QueueSection]:
    """List the queues that accept the cluster's node count, with the time limit at that size.

    The candidates are ``listed``, or all queues of the cluster. The result has one kind: queues
    for everybody, else queues by request, else debug queues.
    """
    fitting = [
        queue.model_copy(update={"longest_hours": queue.hours_on(cluster.nodes)})
        for queue in (cluster.queues if listed is None else listed)
        if can_accept_job(cluster, queue)
    ]
    usual = min(map(_kind, fitting), default=None)
    return [queue for queue in fitting if _kind(queue) == usual]


def _kind(queue: QueueSection) -> tuple[bool, bool]:
    return queue.debug, queue.by_request is not None


def longest_queue(cluster: Cluster) -> QueueSection | None:
    """Return the queue with the longest time limit that accepts the cluster's nodes."""
    return max(queues_on(cluster), key=lambda queue: queue.longest_hours, default=None)


def queue_of_run(cluster: Cluster) -> QueueSection | None:
    """Return the queue for the jobs of a run, including their spare nodes."""
    return longest_queue(with_spares(cluster))


def with_spares(cluster: Cluster) -> Cluster:
    """Return the cluster with the spare nodes added to a job's nodes."""
    return with_nodes(cluster, cluster.nodes + cluster.spare_nodes)


def most_chained(cluster: Cluster, queue: QueueSection | None) -> int | None:
    """Return the maximum length of a job chain in ``queue``, or None if unlimited.

    On Slurm each task of a chain (a job array) counts; on PBS a job and its successor.
    """
    if queue is None:
        return None
    if not queue.chain:
        return 1
    if queue.max_submitted_jobs is None or cluster.scheduler == "slurm":
        return queue.max_submitted_jobs
    return 1 if queue.max_submitted_jobs == 1 else None


def submitted_jobs(cluster: Cluster, jobs: int) -> int:
    """Count the ``jobs`` of a chain that are submitted at the same time."""
    return jobs if cluster.scheduler == "slurm" else min(jobs, 2)


def takes_runs(cluster: Cluster, nodes: int) -> bool:
    """Whether a run of many jobs can use this number of nodes, according to the profile."""
    usual = queues_on(with_nodes(cluster, nodes))
    return not cluster.queues or any(_carries(cluster, queue) for queue in usual)


def with_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """Return the cluster with this number of nodes per job."""
    return cluster.model_copy(update={"nodes": nodes})


def nearest_nodes(cluster: Cluster, nodes: int, hours: float = 0.0) -> list[int]:
    """List the nearest node counts on both sides with a queue for a chain of ``hours``."""
    carrying = [
        q for q in cluster.queues if _carries(cluster, q, hours) and q.by_request is None
    ]
    below = [queue.most_nodes for queue in carrying if queue.most_nodes < nodes]
    above = [queue.fewest_nodes for queue in carrying if queue.fewest_nodes > nodes]
    return [*sorted(below)[-1:], *sorted(above)[:1]]


def no_queue(cluster: Cluster, listed: Sequence[QueueSection]) -> RecipeError:
    """Return the error that none of the ``listed`` queues accepts the cluster's nodes."""
    nodes = cluster.nodes
    sizes = [f"{queue.name} {queue.fewest_nodes:,} to {queue.most_nodes:,}" for queue in listed]
    problem = f"no queue of {cluster.name} takes {nodes:,} nodes: {', '.join(sizes)}"
    options = _options(cluster, None)
    remedy = f"{options}: {DEGREES}" if options else f"choose other degrees, {DEGREES}"
    return RecipeError("cluster.nodes", problem, f"{remedy}; or name another site.queue=...")


def queue_remark(
    cluster: Cluster, queue: QueueSection | None, jobs: int | None
) -> RecipeError | None:
    """Return the limit that a run of ``jobs`` jobs (None: unknown) exceeds, with a fix."""
    if queue is None:
        no_fit = cluster.queues and not queues_on(cluster)
        return no_queue(cluster, [*cluster.queues]) if no_fit else None
    most, needed = most_chained(cluster, queue), jobs or 1
    if most is not None and needed > most:
        return _too_many(cluster, queue, needed, most)
    if queue.by_request is None:
        return None
    problem = f"{cluster.nodes:,}: {queue.name} is by request ({queue.by_request})"
    options = _options(cluster, queue)
    return RecipeError("cluster.nodes", problem, options and f"without one: {options}")


def _too_many(cluster: Cluster, queue: QueueSection, needed: int, most: int) -> RecipeError:
    """Return the error that one chain is too short, with the number of submissions needed."""
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
    options = _options(cluster, queue, needed * queue.longest_hours)
    remedy = f"what takes the whole chain: {options}"
    no_fix = f"no queue of {cluster.name} takes the whole chain"
    return RecipeError("cluster.nodes", problem, remedy if options else no_fix)


def _gap(cluster: Cluster) -> str:
    """Describe the range of node counts around the cluster's that no chain can use."""
    nodes, near = cluster.nodes, nearest_nodes(cluster, cluster.nodes)
    low = max((count + 1 for count in near if count < nodes), default=1)
    high = min((count - 1 for count in near if count > nodes), default=None)
    return f"{low:,} nodes and more" if high is None else f"{low:,} to {high:,} nodes"


def _options(cluster: Cluster, taken: QueueSection | None, hours: float = 0.0) -> str:
    """Describe another queue for a chain of ``hours``, else the nearest node counts."""
    for queue in queues_on(cluster):
        other = taken is None or queue.name != taken.name
        if other and _carries(cluster, queue, hours) and queue.by_request is None:
            return f"site.queue={queue.route or queue.name}, {queue.longest_hours:g} h"
    options = []
    for near in nearest_nodes(cluster, cluster.nodes, hours):
        longest = longest_queue(with_nodes(cluster, near))
        assert longest is not None, "it is the border of a queue"
        verb = "cut to" if near < cluster.nodes else "raise to"
        name = longest.route or longest.name
        options.append(f"{verb} {near:,} ({name}, {longest.longest_hours:g} h)")
    return " or ".join(options)


def _carries(cluster: Cluster, queue: QueueSection, hours: float = 0.0) -> bool:
    """Whether a queue allows runs of many jobs, and one chain in it provides ``hours``."""
    most = most_chained(cluster, queue)
    return not queue.debug and (
        most is None or (most > 1 and most * queue.longest_hours >= hours)
    )
