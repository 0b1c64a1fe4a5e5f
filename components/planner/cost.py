"""The cost of a run: device-hours, energy, days and the parts of them."""

from pydantic import BaseModel

from components.config.schema.cluster import Hardware
from components.config.schema.sections import Cluster
from components.energy.emissions import Emissions
from components.planner.interruptions import HOUR
from components.planner.run_time import RunTimeline

DAY = 24 * HOUR


class CheckpointCost(BaseModel, frozen=True):
    """Checkpoints of a run, and the seconds of each."""

    count: int
    bytes: int
    stall_seconds: float
    write_seconds: float | None
    hash_seconds: float
    read_seconds: float
    interval_seconds: float
    best_interval_seconds: float | None
    best_every_tokens: int | None


class InterruptionCost(BaseModel, frozen=True):
    """Evaluations of a run, or failures to expect, and the seconds of each, where known."""

    count: int | float | None
    each_seconds: float | None


class CostEstimate(BaseModel, frozen=True):
    """Costs of a whole run.

    ``days`` exclude waiting in queues; of the parts that add up to them, null is unknown and
    counts as 0. ``jobs`` are those of the chain, where the limit of a queue is known; they are
    submitted in ``submissions`` commands, one per job where the queue takes no chain.
    """

    device_hours: float
    node_hours: float
    site_units: float
    site_unit: str
    energy_kwh: float | None
    emissions: Emissions
    steps: int
    useful_days: float
    checkpoint_days: float
    evaluation_days: float
    failure_days: float | None
    chain_days: float | None
    days: float
    waiting_days: float
    queue: str | None
    jobs: int | None
    submissions: int | None
    start_up_seconds: float
    checkpoints: CheckpointCost
    evaluations: InterruptionCost
    failures: InterruptionCost


def estimate_cost(run: RunTimeline, cluster: Cluster, hardware: Hardware) -> CostEstimate:
    """Multiply out; energy is the devices' rated power times hours, as BLOOM's card counts."""
    work, failures, chain = run.work, run.failures, run.chain
    saving = work.saving
    hours, watts = run.total / HOUR, hardware.device_watts
    energy = None if watts is None else hours * cluster.ranks * watts / 1_000
    unit, price = "node-h", 1.0
    if not isinstance(cluster.accounting, str):
        unit, price = cluster.accounting.unit, cluster.accounting.per_node_hour
    starts = (failures.count if failures else 0.0) + (chain.jobs if chain else 1)
    return CostEstimate(
        device_hours=hours * cluster.ranks,
        node_hours=hours * cluster.nodes,
        site_units=hours * cluster.nodes * price,
        site_unit=unit,
        energy_kwh=energy,
        emissions=Emissions.of(energy, **cluster.electricity.model_dump()),
        steps=work.steps,
        useful_days=work.useful / DAY,
        checkpoint_days=work.checkpoints * work.stall / DAY,
        evaluation_days=work.evaluations * work.evaluation / DAY,
        failure_days=failures.total / DAY if failures else None,
        chain_days=chain.seconds / DAY if chain else None,
        days=run.total / DAY,
        waiting_days=starts * cluster.waiting_hours * HOUR / DAY,
        queue=chain.queue if chain else None,
        jobs=chain.jobs if chain and chain.queue else None,
        submissions=run.submissions,
        start_up_seconds=run.start_up,
        checkpoints=CheckpointCost(
            count=work.checkpoints,
            bytes=saving.bytes,
            stall_seconds=work.stall,
            write_seconds=saving.write,
            hash_seconds=saving.hashing,
            read_seconds=saving.read,
            interval_seconds=work.interval,
            best_interval_seconds=run.best_interval,
            best_every_tokens=run.best_every_tokens,
        ),
        evaluations=InterruptionCost(count=work.evaluations, each_seconds=work.evaluation),
        failures=InterruptionCost(
            count=failures.count if failures else None,
            each_seconds=failures.each if failures else None,
        ),
    )
