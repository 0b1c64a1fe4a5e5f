"""Interruptions of a run: checkpoints, expected failures, chained jobs.

Failures are uniform over an interval, so half an interval is lost on average (Young 1974, "A
first order approximation to the optimum checkpoint interval", Communications of the ACM 17, 9).
Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps"
(Future Generation Computer Systems 22, 3) adds the restart, and failures during the rework.

Each rank copies its part of a checkpoint to host memory, then writes and hashes it while steps
continue (`components.checkpoint.saving`). Without ``asynchronous``, the steps wait for the
write and the hash instead of the copy. To load, each rank hashes a share of the files, then
reads its part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import NamedTuple

from components.config.schema.cluster import QueueSection
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from components.planner.cost import InterruptionCost
from components.planner.job import TrainingJob
from components.planner.software import SoftwareRun

HOUR = 3_600.0


def mean_seconds_between(node_hours_between: float, nodes: int) -> float:
    """Return the mean seconds between failures of a job, if nodes fail independently."""
    return node_hours_between * HOUR / nodes


def expected_failures(
    *, work: float, interval: float, restart: float, between: float
) -> InterruptionCost | None:
    """Return the failures expected in ``work`` seconds plus the time lost to failures.

    T = work + T / between x (interval / 2 + restart). Returns None for a run that never ends.
    """
    each = interval / 2 + restart
    if each >= between:
        return None
    return InterruptionCost(count=work / (between - each), each_seconds=each)


def best_interval(*, stall: float, between: float) -> float:
    """Return the checkpoint interval, in seconds of work, that minimizes stalls plus lost work.

    Young 1974; valid if ``stall`` is short compared to ``between``.
    """
    return sqrt(2 * stall * between)


@dataclass(frozen=True, kw_only=True)
class CheckpointTime:
    """Seconds of one checkpoint: ``write`` is None if unknown, ``copy`` if steps wait."""

    bytes: int
    copy: float | None
    write: float | None
    hashing: float
    read: float

    @property
    def write_and_hash_seconds(self) -> float:
        """Seconds to write and hash the checkpoint, as far as known."""
        return max(self.write or 0.0, self.hashing)

    @property
    def stall_seconds(self) -> float:
        """Seconds that steps wait for a checkpoint, if the previous checkpoint is complete."""
        return self.write_and_hash_seconds if self.copy is None else self.copy

    @property
    def delay_seconds(self) -> float:
        """Seconds after the stall until a restart can use the checkpoint."""
        return 0.0 if self.copy is None else self.write_and_hash_seconds


def checkpoint_bytes(job: TrainingJob) -> int:
    """Return the bytes of a checkpoint: weights, master copies and moments, without replicas.

    With DeepSpeed, only the master copy of the weights is written. Padding rows are written.
    """
    shape = job.shape
    parameters = shape.total_parameters + shape.padding_parameters + shape.mtp_parameters
    matrices = shape.over_layers(lambda layer: layer.layer_matrices)
    matrices += shape.mtp_depth * (shape.layer_matrices + 2 * shape.dim**2)
    spared = matrices * job.moment_bytes // 2 if job.muon else 0
    return parameters * job.saved_bytes - spared


def checkpoint_time(
    job: TrainingJob, cluster: Cluster, run: SoftwareRun, *, asynchronous: bool
) -> CheckpointTime:
    """Predict the seconds to write and read a checkpoint if all ranks take equal shares."""
    size, storage = checkpoint_bytes(job), cluster.storage
    write = job_rate(cluster, storage.write_gigabytes_per_second)
    read = job_rate(cluster, storage.read_gigabytes_per_second)
    share, fetched = size / job.layout.num_ranks, size / read if read else 0.0
    hashing = share / (run.hash_gigabytes_per_second * 1e9)
    return CheckpointTime(
        bytes=size,
        copy=share / (run.copy_gigabytes_per_second * 1e9) if asynchronous else None,
        write=size / write if write else None,
        hashing=hashing,
        read=max(fetched, hashing) + fetched,  # the first read is for the hash
    )


def job_rate(cluster: Cluster, measured: float | None) -> float | None:
    """Return bytes per second between job and storage, at most those of the nodes' links."""
    rate = measured or cluster.storage.peak_gigabytes_per_second
    if rate is None or isinstance(cluster.hardware, str):
        return None
    link = cluster.hardware.across.peak_gigabytes_per_second
    if link is not None:
        rate = min(rate, link * cluster.devices_per_node * cluster.nodes)
    return rate * 1e9


def missing_rates(cluster: Cluster) -> list[RecipeError]:
    """List the storage rates that are not measured, with the command that measures each."""
    storage, errors = cluster.storage, []
    peak = "not measured; the file system's peak is used, as if the job had it alone"
    for key, without, flag in (
        ("write", "not measured; a checkpoint takes as long as hashing it", "-w"),
        ("read", "not measured; a restart hashes its checkpoint as if it were at hand", "-r"),
    ):
        name = f"{key}_gigabytes_per_second"
        if getattr(storage, name) is None:
            problem = peak if storage.peak_gigabytes_per_second else without
            remedy = f"run ior {flag} -F -t 16m -b 4g with a process a device on as many nodes"
            errors.append(RecipeError(f"cluster.storage.{name}", problem, remedy))
    return errors


class JobChain(NamedTuple):
    """Chained jobs, and the seconds they spend on start-up and handover."""

    queue: str | None
    jobs: int
    seconds: float


def chain_of_phases(
    phases: Sequence[float], queue: QueueSection | None, *, start_up: float, hand_over: float
) -> JobChain | None:
    """Divide the seconds of each phase into jobs. Each phase starts with a new job."""
    phase_chains = [chain_of(p, queue, start_up=start_up, hand_over=hand_over) for p in phases]
    chains = [chain for chain in phase_chains if chain is not None]
    if len(chains) < len(phase_chains):
        return None
    jobs, seconds = sum(chain.jobs for chain in chains), sum(chain.seconds for chain in chains)
    return JobChain(chains[0].queue, jobs, seconds + (len(chains) - 1) * hand_over)


def chain_of(
    work: float, queue: QueueSection | None, *, start_up: float, hand_over: float
) -> JobChain | None:
    """Divide ``work`` seconds into jobs. Without a queue's time limit, one job is enough.

    Each job but the last hands over to the next: it writes a checkpoint, which the next reads.
    None: no time remains for work.
    """
    if queue is None:
        return JobChain(None, 1, start_up)
    room = queue.longest_hours * HOUR - start_up
    if work <= room:
        return JobChain(queue.name, 1, start_up)
    if room <= hand_over:
        return None
    jobs = ceil((work - hand_over) / (room - hand_over))
    return JobChain(queue.name, jobs, jobs * start_up + (jobs - 1) * hand_over)
