"""Bytes of a checkpoint, how long it is written, and how long a run stands still for it.

Each rank copies what it writes into the host's memory, and while steps go on writes it and
hashes it at once (`components.checkpoint.saving`); without ``asynchronous`` the steps wait for
that instead of a copy. Loading, the files are dealt to the ranks; each hashes its share, and
then takes its part.
"""

from dataclasses import dataclass

from components.errors import RecipeError
from components.planner.job import Job
from components.planner.software import SoftwareRun
from components.spec.sections import Cluster


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


def checkpoint_bytes(job: Job) -> int:
    """Count weights in the precision that is updated and both moments, each number once.

    A mesh keeps one copy of the weights, DeepSpeed a master copy, and that one is written.
    Padding rows are; gradients and casts are not.
    """
    shape = job.shape
    parameters = shape.total_parameters + shape.padding_parameters
    return parameters * ((job.master_bytes or job.weight_bytes) + job.moment_bytes)


def checkpoint_time(
    job: Job, cluster: Cluster, run: SoftwareRun, *, asynchronous: bool
) -> CheckpointTime:
    """Predict writing and reading by all ranks of the cluster's job, in equal shares."""
    size = checkpoint_bytes(job)
    storage = cluster.storage
    write = job_rate(cluster, storage.write_gigabytes_per_second)
    read = job_rate(cluster, storage.read_gigabytes_per_second)
    share = size / job.layout.ranks
    hashing = share / (run.hash_gigabytes_per_second * 1e9)
    copy = share / (run.copy_gigabytes_per_second * 1e9)
    fetched = size / read if read else 0.0
    return CheckpointTime(
        bytes=size,
        copy=copy if asynchronous else None,
        write=size / write if write else None,
        hashing=hashing,
        read=max(fetched, hashing) + fetched,  # once to hash it, once to take it
    )


def job_rate(cluster: Cluster, measured: float | None) -> float | None:
    """Return bytes a second between a job and the storage: measured, or at most the peak.

    Few nodes cannot take more than their own network.
    """
    rate = measured or cluster.storage.peak_gigabytes_per_second
    hardware = cluster.hardware
    if rate is None or isinstance(hardware, str):
        return None
    link = hardware.across.peak_gigabytes_per_second
    if link is not None:
        rate = min(rate, link * cluster.devices_per_node * cluster.nodes)
    return rate * 1e9


def missing_rates(cluster: Cluster) -> list[RecipeError]:
    """Name the rates of the storage that nobody measured, and how to measure them."""
    storage, found = cluster.storage, []
    peak = "not measured; the file system's peak is used, as if the job had it alone"
    for key, rate, without, flag in (
        (
            "write_gigabytes_per_second",
            storage.write_gigabytes_per_second,
            "not measured; a checkpoint takes as long as hashing it",
            "-w",
        ),
        (
            "read_gigabytes_per_second",
            storage.read_gigabytes_per_second,
            "not measured; a restart hashes its checkpoint as if it were at hand",
            "-r",
        ),
    ):
        if rate is None:
            problem = peak if storage.peak_gigabytes_per_second else without
            remedy = f"run ior {flag} -F -t 16m -b 4g with a process a device on as many nodes"
            found.append(RecipeError(f"cluster.storage.{key}", problem, remedy))
    return found
