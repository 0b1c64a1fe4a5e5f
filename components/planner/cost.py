"""Cost of a run and of a tree of runs: device-hours, energy, days and their parts."""

from pydantic import BaseModel

from components.energy.emissions import Emissions


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
    """Evaluations or expected failures of a run, and the seconds of each, if known."""

    count: int | float | None
    each_seconds: float | None

    @property
    def total_seconds(self) -> float:
        """Seconds of all, 0 if unknown."""
        return (self.count or 0) * (self.each_seconds or 0.0)


class CostEstimate(BaseModel, frozen=True):
    """Costs of a whole run; a part that is None is unknown and counts as 0.

    ``days`` exclude waiting in queues. ``jobs`` is the length of the job chain, if the queue's
    time limit is known. ``submissions`` counts submit commands: one per job without chains.
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


class PlannedNode(BaseModel, frozen=True):
    """Cost of one node itself; None means unknown, or that the node is not a run.

    ``of`` is None for the root and for nodes directly below it. ``days`` exclude waiting.
    ``storage_bytes`` are the checkpoints that exist at a time, and the retained weights.
    """

    kind: str
    of: str | None
    at_tokens: int | None
    device_hours: float | None
    days: float | None
    energy_kwh: float | None
    storage_bytes: int | None


class PlannedTree(BaseModel, frozen=True):
    """All nodes, the root first, and their sums. A sum is None if a run's part is unknown.

    ``longest_days`` is the duration of ``longest_path``. On a cluster, a child starts as soon
    as its checkpoint exists. Without a scheduler the nodes run one after the other.
    """

    nodes: dict[str, PlannedNode]
    device_hours: float | None
    energy_kwh: float | None
    storage_bytes: int | None
    longest_days: float | None
    longest_path: tuple[str, ...]
    not_planned: tuple[str, ...]
