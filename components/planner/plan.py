"""One plan: memory, time and bill of a recipe on its cluster, and what the profile lacks."""

from dataclasses import dataclass, replace

from components.config.schema.cluster import Hardware
from components.config.schema.recipe import Recipe
from components.errors import RecipeError
from components.planner.cost import Bill, bill
from components.planner.job import TrainingJob, job_of
from components.planner.memory import Memory, plan_memory
from components.planner.rates import Rates, rates
from components.planner.run_time import Course, plan_course
from components.planner.software import (
    OURS,
    Calibration,
    SoftwareModel,
    calibration_of,
    read_software,
)
from components.planner.time import StepTime, plan_time

# Nine of ten measured steps lie within a third of the prediction on up to 16 nodes whose links
# are measured; where a figure is missing, nobody knows, and twice that is said.
ERROR_FRACTION, MISSING_FACTOR = 0.33, 2.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Predictions of one recipe; without ``time`` where the profile lacks what it needs.

    ``missing`` names every figure that the plan went on without, ``is_guess`` says whether the
    time of a step needed one of them. ``calibration`` is what the cluster's own runs say of
    the ``software``.
    """

    job: TrainingJob
    hardware: Hardware
    software: SoftwareModel
    calibration: Calibration | None
    memory: Memory
    missing: tuple[RecipeError, ...]
    is_guess: bool
    time: StepTime | None = None
    course: Course | None = None
    rates: Rates | None = None
    bill: Bill | None = None

    @property
    def error_fraction(self) -> float:
        """Describe by how much a step may be off: nine of ten measured ones were closer."""
        if self.calibration is not None:
            return self.calibration.time_error.held_out.p90
        return ERROR_FRACTION * (MISSING_FACTOR if self.is_guess else 1.0)


def plan_recipe(recipe: Recipe) -> Plan:
    """Predict from numbers alone: what is published, assumed or named stays unread.

    Raises:
        RecipeError: the cluster has no physical profile.
    """
    hardware = recipe.cluster.hardware
    if isinstance(hardware, str):
        raise RecipeError(
            "cluster.hardware",
            f"nobody has measured the cluster {recipe.cluster.name!r}",
            f"plan for a machine with a profile: cluster={recipe.home}",
        )
    job, calibration = job_of(recipe), calibration_of(recipe.cluster)
    software = calibration.software() if calibration else read_software(OURS)
    missing = _missing_figures(hardware, job)
    plan = Plan(
        job=job,
        hardware=hardware,
        software=software,
        calibration=calibration,
        memory=plan_memory(job, hardware, software.memory),
        missing=missing,
        is_guess=bool(missing),
    )
    try:
        time = plan_time(job, hardware, software.speed)
    except RecipeError as error:
        return replace(plan, missing=(error, *missing), is_guess=True)
    course = plan_course(recipe, job, time, hardware, software)
    return replace(
        plan,
        time=time,
        course=course,
        rates=rates(job, hardware, time.total),
        bill=bill(course=course, cluster=recipe.cluster, hardware=hardware),
        missing=(*missing, *course.missing),
    )


def _missing_figures(hardware: Hardware, job: TrainingJob) -> tuple[RecipeError, ...]:
    """Name the figures that the plan went on without, and how to measure each."""
    path, layout = "cluster.hardware", job.layout
    found = []
    if hardware.usable_bytes is None and hardware.context_bytes is None:
        problem = "not measured; all of the device's memory counts as usable"
        remedy = "read the free memory of a device after the first collective, before any model"
        found.append(RecipeError(f"{path}.context_bytes", problem, remedy))
    inside = hardware.inside.all_gather_gigabytes_per_second
    if layout.tensor > 1 and inside is None:
        problem = "not measured; a part of the vendor's figure is used"
        remedy = "run all_gather_perf -b 256M -e 256M of nccl-tests, or oneCCL's benchmark"
        found.append(
            RecipeError(f"{path}.inside.all_gather_gigabytes_per_second", problem, remedy)
        )
    if layout.ranks > layout.devices_per_node and len(hardware.across.by_nodes) < 2:
        problem = "too few node counts are measured to know how bandwidth falls"
        remedy = "run all_reduce_perf -b 256M -e 256M on 2, 4, 8, ... nodes"
        found.append(RecipeError(f"{path}.across.by_nodes", problem, remedy))
    return tuple(found)
