"""The cost of a run, and of a tree of runs: device-hours, energy, days and their parts."""

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


class PlannedNode(BaseModel, frozen=True):
    """What a node does itself; ``of`` is None below the trunk, and for the trunk.

    Null is what is not planned, as of everything that is no run, or not known. ``days`` are
    without waiting; ``storage_bytes`` are those of checkpoints at a time and of weights that
    stay.
    """

    kind: str
    of: str | None
    at_tokens: int | None
    device_hours: float | None
    days: float | None
    energy_kwh: float | None
    storage_bytes: int | None


class PlannedTree(BaseModel, frozen=True):
    """All nodes, the trunk first, and their sums, null where a run's part is not known.

    ``longest_days`` are those of ``longest_path``, each node from where it can begin: a child
    on a cluster does not wait for the end of its parent. Without a scheduler the nodes are
    done one after the other.
    """

    nodes: dict[str, PlannedNode]
    device_hours: float | None
    energy_kwh: float | None
    storage_bytes: int | None
    longest_days: float | None
    longest_path: tuple[str, ...]
    not_planned: tuple[str, ...]
