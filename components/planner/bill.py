"""What a run costs: device-hours, the site's unit, energy, days and jobs in a chain."""

from dataclasses import dataclass
from math import ceil

from components.spec.hardware import Hardware, Queue
from components.spec.sections import Cluster

HOUR, DAY = 3_600.0, 86_400.0


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Costs of the whole token budget at one step time, without waiting in queues."""

    device_hours: float
    node_hours: float
    site_units: float
    site_unit: str
    energy_kwh: float | None
    days: float
    queue: str | None
    jobs: int | None

    def as_json(self) -> dict[str, object]:
        return {
            "device_hours": self.device_hours,
            "node_hours": self.node_hours,
            "site_units": self.site_units,
            "site_unit": self.site_unit,
            "energy_kwh": self.energy_kwh,
            "days": self.days,
            "queue": self.queue,
            "jobs": self.jobs,
        }


def bill(*, step_seconds: float, steps: float, cluster: Cluster, hardware: Hardware) -> Bill:
    """Multiply out; energy is the devices' rated power times hours, as BLOOM's card counts."""
    seconds = step_seconds * steps
    node_hours = seconds / HOUR * cluster.nodes
    device_hours = seconds / HOUR * cluster.ranks
    watts = hardware.power_watts
    unit, price = "node-h", 1.0
    if not isinstance(cluster.accounting, str):
        unit, price = cluster.accounting.unit, cluster.accounting.per_node_hour
    queue = longest_queue(cluster)
    return Bill(
        device_hours=device_hours,
        node_hours=node_hours,
        site_units=node_hours * price,
        site_unit=unit,
        energy_kwh=None if watts is None else device_hours * watts / 1_000,
        days=seconds / DAY,
        queue=queue.name if queue else None,
        jobs=ceil(seconds / HOUR / queue.longest_hours) if queue else None,
    )


def longest_queue(cluster: Cluster) -> Queue | None:
    """Choose, of the queues that take so many nodes, the one whose jobs may run longest."""
    fitting = [
        queue
        for queue in cluster.queues
        if queue.fewest_nodes <= cluster.nodes <= queue.most_nodes
    ]
    return max(fitting, key=lambda queue: queue.longest_hours, default=None)
