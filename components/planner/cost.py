"""What a run costs: device-hours, the site's unit, energy, days and jobs in a chain."""

from dataclasses import dataclass

from components.config.schema.cluster import Hardware
from components.config.schema.sections import Cluster
from components.planner.run_time import Course

HOUR, DAY = 3_600.0, 86_400.0
BILL_KEYS = (
    *("device_hours", "node_hours", "site_units", "site_unit", "energy_kwh", "steps"),
    *("useful_days", "checkpoint_days", "evaluation_days", "failure_days", "chain_days"),
    *("days", "waiting_days", "queue", "jobs", "start_up_seconds"),
    *("checkpoints", "evaluations", "failures"),
)


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Costs of the whole course of a run; ``days`` are without waiting in queues."""

    course: Course
    device_hours: float
    node_hours: float
    site_units: float
    site_unit: str
    energy_kwh: float | None
    waiting_days: float

    @property
    def days(self) -> float:
        return self.course.total / DAY

    @property
    def jobs(self) -> int | None:
        """Jobs of the chain, where a queue's limit is known."""
        chain = self.course.chain
        return chain.jobs if chain and chain.queue else None

    def as_json(self) -> dict[str, object]:
        course = self.course
        chain = course.chain
        return {
            "device_hours": self.device_hours,
            "node_hours": self.node_hours,
            "site_units": self.site_units,
            "site_unit": self.site_unit,
            "energy_kwh": self.energy_kwh,
            "steps": course.work.steps,
            **_days(course),
            "days": self.days,
            "waiting_days": self.waiting_days,
            "queue": chain.queue if chain else None,
            "jobs": self.jobs,
            **_counts(course),
        }


def _days(course: Course) -> dict[str, float | None]:
    """Give the parts whose sum is ``days``; null is not known, and 0 in the sum."""
    work, failures, chain = course.work, course.failures, course.chain
    return {
        "useful_days": work.useful / DAY,
        "checkpoint_days": work.checkpoints * work.stall / DAY,
        "evaluation_days": work.evaluations * work.evaluation / DAY,
        "failure_days": failures.total / DAY if failures else None,
        "chain_days": chain.seconds / DAY if chain else None,
    }


def _counts(course: Course) -> dict[str, object]:
    work, saving, failures = course.work, course.work.saving, course.failures
    return {
        "start_up_seconds": course.start_up,
        "checkpoints": {
            "count": work.checkpoints,
            "bytes": saving.bytes,
            "stall_seconds": work.stall,
            "write_seconds": saving.write,
            "hash_seconds": saving.hashing,
            "read_seconds": saving.read,
            "interval_seconds": work.interval,
            "best_interval_seconds": course.best_interval,
            "best_every_tokens": course.best_every_tokens,
        },
        "evaluations": {"count": work.evaluations, "each_seconds": work.evaluation},
        "failures": {
            "count": failures.count if failures else None,
            "each_seconds": failures.each if failures else None,
        },
    }


def bill(*, course: Course, cluster: Cluster, hardware: Hardware) -> Bill:
    """Multiply out; energy is the devices' rated power times hours, as BLOOM's card counts."""
    hours = course.total / HOUR
    watts = hardware.power_watts
    unit, price = "node-h", 1.0
    if not isinstance(cluster.accounting, str):
        unit, price = cluster.accounting.unit, cluster.accounting.per_node_hour
    failures = course.failures.count if course.failures else 0.0
    starts = failures + (course.chain.jobs if course.chain else 1)
    return Bill(
        course=course,
        device_hours=hours * cluster.ranks,
        node_hours=hours * cluster.nodes,
        site_units=hours * cluster.nodes * price,
        site_unit=unit,
        energy_kwh=None if watts is None else hours * cluster.ranks * watts / 1_000,
        waiting_days=starts * cluster.waiting_hours * HOUR / DAY,
    )
