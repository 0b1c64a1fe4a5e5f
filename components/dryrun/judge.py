"""A rehearsed role beside its plan: where the two differ, and whether the device takes it.

The device holds more than tensors: the plan's fragmentation of activations and its base are
added before a peak is judged, by the plan's own margins.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from components.dryrun.roles import Role
from components.planner.memory import RankMemory, Verdict, verdict_of
from components.planner.plan import Plan
from components.planner.software import Software
from components.planner.volumes import sent_bytes, step_flops

WORTH_NAMING = 0.05  # a difference below it is not named
SMALL = 0.01  # nor is one of a part that is less of the whole

Found = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A figure of the plan beside that of the dry run."""

    figure: str
    planned: float
    found: float
    whole: float

    @property
    def fraction(self) -> float:
        return self.found / self.planned - 1 if self.planned else float("inf")

    @property
    def is_named(self) -> bool:
        apart = abs(self.found - self.planned)
        return apart > WORTH_NAMING * self.planned and apart > SMALL * self.whole


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One role: the peak on the device, the plan's, and all figures of both."""

    role: Role
    found: Found
    peak_bytes: float
    planned_bytes: float
    verdict: Verdict
    differences: tuple[Difference, ...]


def judge(role: Role, found: Found, plan: Plan) -> Judged:
    """Set one role beside the plan of its pipeline rank."""
    software = plan.software
    memory = plan.memory.ranks[role.pipeline_rank]
    peak = max(_reserved(one, software) for one in found["peaks"].values())
    return Judged(
        role=role,
        found=found,
        peak_bytes=peak,
        planned_bytes=memory.peak,
        verdict=verdict_of(peak, plan.memory.usable_bytes),
        differences=(
            *_of_memory(found, memory, peak, software),
            *_of_collectives(found, plan, role, software),
            _of_flops(found, plan, role),
        ),
    )


def highest(found: Found) -> Found:
    """Return the moment at which the tensors of a role take the most."""
    peaks: dict[str, Found] = found["peaks"]
    return max(peaks.values(), key=lambda peak: peak["bytes"])


def _reserved(peak: Found, software: Software) -> float:
    """Add what an allocator loses between activations, and what is there before anything."""
    lost = (software.memory.fragmentation - 1) * peak["by_category"]["activations"]
    return float(peak["bytes"] + lost + software.memory.base_bytes)


def _of_memory(
    found: Found, plan: RankMemory, peak: float, software: Software
) -> list[Difference]:
    """Compare what stays, what comes and goes at the highest moment, and the peak.

    What comes and goes is not compared by category: which of them it is depends on the moment,
    and of two that are nearly as high the plan may take the other.
    """
    at_peak = highest(found)["by_category"]
    tensors = plan.activations / software.memory.fragmentation
    passes = plan.moments.passes - plan.activations + tensors
    staying = ("weights", "optimizer")
    pairs = {
        "weights": (plan.states.weights, at_peak["weights"]),
        "optimizer": (plan.states.master + plan.states.optimizer, at_peak["optimizer"]),
        "passing": (
            max(passes, plan.moments.update),
            sum(size for category, size in at_peak.items() if category not in staying),
        ),
        "peak": (plan.peak, peak),
    }
    return [
        Difference(figure=f"{name}_bytes", planned=planned, found=seen, whole=peak)
        for name, (planned, seen) in pairs.items()
    ]


def _of_collectives(
    found: Found, plan: Plan, role: Role, software: Software
) -> list[Difference]:
    planned = sent_bytes(plan.job, role.pipeline_rank, software.speed)
    seen: Counter[str] = Counter()
    for call in found["collectives"]:
        seen[axis_of(call["axis"])] += call["sent_bytes"]
    whole = sum(seen.values())
    return [
        Difference(
            figure=f"{axis}_sent_bytes",
            planned=planned.get(axis, 0.0),
            found=seen[axis],
            whole=whole,
        )
        for axis in ("tensor", "data", "expert", "context", "pipeline")
        if seen[axis] or axis in planned
    ]


def axis_of(group: str) -> str:
    """Count groups that join other axes to data under data, as the plan does."""
    return "data" if "data" in group or " x " in group else group


def _of_flops(found: Found, plan: Plan, role: Role) -> Difference:
    seen = float(sum(found["flops"].values()))
    planned = step_flops(plan.job, role.pipeline_rank)
    return Difference(figure="flops", planned=planned, found=seen, whole=seen)
