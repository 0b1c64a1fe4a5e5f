"""Interruptions of a run: checkpoints, failures to expect, the chain of jobs.

Young 1974, "A first order approximation to the optimum checkpoint interval" (Communications of
the ACM 17, 9): a failure falls anywhere in an interval, so half of it is lost on average. Daly
2006, "A higher order estimate of the optimum checkpoint interval for restart dumps" (Future
Generation Computer Systems 22, 3) has the restart beside it and what a failure costs while the
run makes up for another.

Each rank copies what it writes into the host's memory, and while steps go on writes it and
hashes it at once (`components.checkpoint.saving`); without ``asynchronous`` the steps wait for
that instead of a copy. Loading, the files are dealt to the ranks; each hashes its share, and
then takes its part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import NamedTuple

from components.config.schema.cluster import QueueSection
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from components.planner.job import TrainingJob
from components.planner.software import SoftwareRun

HOUR = 3_600.0


@dataclass(frozen=True)
class FailureTime:
    """Failures of a whole run and the seconds that each of them costs."""

    count: float
    each: float

    @property
    def total(self) -> float:
        return self.count * self.each


def mean_seconds_between(node_hours_between: float, nodes: int) -> float:
    """Return the mean time between failures of a job: nodes fail on their own."""
    return node_hours_between * HOUR / nodes


def expected_failures(
    *, work: float, interval: float, restart: float, between: float
) -> FailureTime | None:
    """Count the failures of ``work`` seconds and of the seconds that they cost themselves.

    T = work + T / between x (interval / 2 + restart). Nothing is returned where a failure
    costs as long as it takes for the next one to come: such a run does not end.
    """
    each = interval / 2 + restart
    return None if each >= between else FailureTime(work / (between - each), each)


def best_interval(*, stall: float, between: float) -> float:
    """Return the seconds of work between checkpoints at which stalls and losses are least.

    sqrt(2 x stall x between) in Young 1974, where a stall is short beside ``between``.
    """
    return sqrt(2 * stall * between)


@dataclass(frozen=True, kw_only=True)
class CheckpointTime:
    """Seconds of one checkpoint; ``write`` is null where nobody knows the storage's rate.

    ``copy`` is null where steps wait for the disk.
    """

    bytes: int
    copy: float | None
    write: float | None
    hashing: float
    read: float

    @property
    def whole(self) -> float:
        """How long it takes to write and hash, as far as it is known."""
        return max(self.write or 0.0, self.hashing)

    @property
    def stall(self) -> float:
        """Between two steps, where the checkpoint before is done."""
        return self.whole if self.copy is None else self.copy

    @property
    def behind(self) -> float:
        """How long after the stall it is not yet there to go on from."""
        return 0.0 if self.copy is None else self.whole


def checkpoint_bytes(job: TrainingJob) -> int:
    """Count weights, their finer copies and all moments, each number once.

    Of DeepSpeed's weights the master copy alone is written. Padding rows are; gradients and
    casts are not. Muon's matrices have one moment.
    """
    shape = job.shape
    parameters = shape.total_parameters + shape.padding_parameters + shape.mtp_parameters
    matrices = shape.over_layers(lambda one: one.layer_matrices)
    matrices += shape.mtp_depth * (shape.layer_matrices + 2 * shape.dim**2)
    spared = matrices * job.moment_bytes // 2 if job.muon else 0
    return parameters * job.saved_bytes - spared


def checkpoint_time(
    job: TrainingJob, cluster: Cluster, run: SoftwareRun, *, asynchronous: bool
) -> CheckpointTime:
    """Predict writing and reading by all ranks of the cluster's job, in equal shares."""
    size, storage = checkpoint_bytes(job), cluster.storage
    write = job_rate(cluster, storage.write_gigabytes_per_second)
    read = job_rate(cluster, storage.read_gigabytes_per_second)
    share, fetched = size / job.layout.ranks, size / read if read else 0.0
    hashing = share / (run.hash_gigabytes_per_second * 1e9)
    return CheckpointTime(
        bytes=size,
        copy=share / (run.copy_gigabytes_per_second * 1e9) if asynchronous else None,
        write=size / write if write else None,
        hashing=hashing,
        read=max(fetched, hashing) + fetched,  # once to hash it, once to take it
    )


def job_rate(cluster: Cluster, measured: float | None) -> float | None:
    """Return bytes a second between a job and the storage: measured, or at most the peak.

    Few nodes cannot take more than their own network.
    """
    rate = measured or cluster.storage.peak_gigabytes_per_second
    if rate is None or isinstance(cluster.hardware, str):
        return None
    link = cluster.hardware.across.peak_gigabytes_per_second
    if link is not None:
        rate = min(rate, link * cluster.devices_per_node * cluster.nodes)
    return rate * 1e9


def missing_rates(cluster: Cluster) -> list[RecipeError]:
    """Name the rates of the storage that nobody measured, and how to measure them."""
    storage, found = cluster.storage, []
    peak = "not measured; the file system's peak is used, as if the job had it alone"
    for key, without, flag in (
        ("write", "not measured; a checkpoint takes as long as hashing it", "-w"),
        ("read", "not measured; a restart hashes its checkpoint as if it were at hand", "-r"),
    ):
        name = f"{key}_gigabytes_per_second"
        if getattr(storage, name) is None:
            problem = peak if storage.peak_gigabytes_per_second else without
            remedy = f"run ior {flag} -F -t 16m -b 4g with a process a device on as many nodes"
            found.append(RecipeError(f"cluster.storage.{name}", problem, remedy))
    return found


class JobChain(NamedTuple):
    """Jobs one after another, and the seconds of them that go to starting and handing over."""

    queue: str | None
    jobs: int
    seconds: float


def chain_of_phases(
    phases: Sequence[float],
    queue: QueueSection | None,
    *,
    start_up: float,
    write: float,
    read: float,
) -> JobChain | None:
    """Cut the seconds of each phase into jobs: a phase begins with a job of its own."""
    found = [chain_of(one, queue, start_up=start_up, write=write, read=read) for one in phases]
    chains = [one for one in found if one is not None]
    if len(chains) < len(found):
        return None
    jobs, seconds = sum(one.jobs for one in chains), sum(one.seconds for one in chains)
    return JobChain(chains[0].queue, jobs, seconds + (len(chains) - 1) * (write + read))


def chain_of(
    work: float, queue: QueueSection | None, *, start_up: float, write: float, read: float
) -> JobChain | None:
    """Cut ``work`` seconds into jobs; without a queue's limit one job does it all.

    Every job starts up; all but the last end with a checkpoint that the next one reads.
    Nothing is returned where a job is over before it has done any work.
    """
    if queue is None:
        return JobChain(None, 1, start_up)
    hand_over, room = write + read, queue.longest_hours * HOUR - start_up
    if work <= room:
        return JobChain(queue.name, 1, start_up)
    if room <= hand_over:
        return None
    jobs = ceil((work - hand_over) / (room - hand_over))
    return JobChain(queue.name, jobs, jobs * start_up + (jobs - 1) * hand_over)
