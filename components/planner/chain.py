"""The chain of jobs that a queue's limit cuts a run into."""

from dataclasses import dataclass
from math import ceil

from components.spec.hardware import Queue
from components.spec.sections import Cluster

HOUR = 3_600.0


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Jobs one after another, and the seconds of them that go to starting and handing over."""

    queue: str | None
    jobs: int
    seconds: float


def longest_queue(cluster: Cluster) -> Queue | None:
    """Choose, of the queues that take so many nodes, the one whose jobs may run longest."""
    fitting = [
        queue
        for queue in cluster.queues
        if queue.fewest_nodes <= cluster.nodes <= queue.most_nodes
    ]
    return max(fitting, key=lambda queue: queue.longest_hours, default=None)


def chain_of(
    work: float, queue: Queue | None, *, start_up: float, write: float, read: float
) -> Chain | None:
    """Cut ``work`` seconds into jobs; without a queue's limit one job does it all.

    Every job starts up; all but the last end with a checkpoint that the next one reads.
    Nothing is returned where a job is over before it has done any work.
    """
    if queue is None:
        return Chain(queue=None, jobs=1, seconds=start_up)
    hand_over = write + read
    room = queue.longest_hours * HOUR - start_up
    if work <= room:
        return Chain(queue=queue.name, jobs=1, seconds=start_up)
    if room <= hand_over:
        return None
    jobs = ceil((work - hand_over) / (room - hand_over))
    seconds = jobs * start_up + (jobs - 1) * hand_over
    return Chain(queue=queue.name, jobs=jobs, seconds=seconds)
