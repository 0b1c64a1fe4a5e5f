"""One plan: memory, time and bill of a recipe on its cluster, and what the profile lacks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel

from components.config.phases import recipes_of
from components.config.recipe import Recipe
from components.config.schema.cluster import Electricity, Hardware
from components.config.schema.sections import Cluster
from components.energy.emissions import Emissions
from components.errors import RecipeError
from components.planner.interruptions import HOUR, JobChain
from components.planner.job import TrainingJob, job_of
from components.planner.memory import Memory, plan_memory
from components.planner.queues import longest_queue, queue_remark, with_nodes
from components.planner.run_time import Course, PhaseStep, plan_course
from components.planner.software import Calibration, SoftwareModel, software_of
from components.planner.time import StepTime, plan_time

# Nine of ten measured steps lie within a third of the prediction on up to 16 nodes whose links
# are measured; where a figure is missing, nobody knows, and twice that is said.
ERROR_FRACTION, MISSING_FACTOR = 0.33, 2.0
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


class Bill(BaseModel, frozen=True):
    """Costs of the whole course of a run.

    ``days`` are without waiting in queues; of the parts that add up to them, null is not known
    and counts as 0. ``jobs`` are those of the chain, where a queue's limit is known; somebody
    submits them in so many ``submissions``, one by one where the queue takes no chain.
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


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """What one phase of a run needs and takes; ``step`` is null where ``Plan.time`` is."""

    recipe: Recipe
    job: TrainingJob
    memory: Memory
    step: StepTime | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Predictions of one recipe; without ``time`` where the profile lacks what it needs.

    Of a run with phases job, memory and time are those of its first steps, and ``phases`` has
    all; course and bill are of the whole run.
    ``missing`` names every figure that the plan went on without, ``is_guess`` says whether the
    time of a step needed one of them. ``calibration`` is what the cluster's own runs say of
    the ``software``. ``limit`` is what the run meets in its queue, with the nearest way out.
    """

    job: TrainingJob
    hardware: Hardware
    software: SoftwareModel
    calibration: Calibration | None
    memory: Memory
    missing: tuple[RecipeError, ...]
    is_guess: bool
    limit: RecipeError | None
    time: StepTime | None = None
    course: Course | None = None
    bill: Bill | None = None
    phases: tuple[PhasePlan, ...] = ()

    @property
    def fullest(self) -> Memory:
        """The memory of the phase that needs most."""
        return max((self.memory, *(one.memory for one in self.phases)), key=lambda m: m.peak)

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
    steps_left = [one for one in recipes_of(recipe).values() if _is_left(one)]
    job, (software, calibration) = job_of(steps_left[0]), software_of(recipe.cluster)
    missing = _missing_figures(hardware, job)
    plan = Plan(
        job=job,
        hardware=hardware,
        software=software,
        calibration=calibration,
        memory=plan_memory(job, hardware, software.memory),
        missing=missing,
        is_guess=bool(missing),
        limit=_limit(recipe.cluster, None),
    )
    jobs = [(one, job_of(one)) for one in steps_left]
    memories = [plan_memory(one, hardware, software.memory) for _, one in jobs]
    try:
        times = [plan_time(one, hardware, software.speed) for _, one in jobs]
    except RecipeError as error:
        phases = _phases(jobs, memories, [None] * len(jobs))
        return replace(plan, missing=(error, *missing), is_guess=True, phases=phases)
    steps = [
        PhaseStep(recipe=one, job=its_job, step=step)
        for (one, its_job), step in zip(jobs, times, strict=True)
    ]
    course = plan_course(steps, hardware, software)
    return replace(
        plan,
        time=times[0],
        phases=_phases(jobs, memories, times),
        course=course,
        bill=bill_of(course, recipe.cluster, hardware),
        missing=(*missing, *course.missing, *_unknown_emissions(recipe.cluster.electricity)),
        limit=_limit(recipe.cluster, course.chain),
    )


def _is_left(phase: Recipe) -> bool:
    """Whether the run takes steps of a phase itself, and not its parent all of them."""
    return phase.span.end_step > phase.first_step


def _phases(
    jobs: Sequence[tuple[Recipe, TrainingJob]],
    memories: Sequence[Memory],
    times: Sequence[StepTime | None],
) -> tuple[PhasePlan, ...]:
    """Put a phase's parts together; a run without phases has none."""
    if not jobs[1:]:
        return ()
    return tuple(
        PhasePlan(recipe=recipe, job=job, memory=memory, step=step)
        for (recipe, job), memory, step in zip(jobs, memories, times, strict=True)
    )


def _limit(cluster: Cluster, chain: JobChain | None) -> RecipeError | None:
    asked = with_nodes(cluster, cluster.nodes + cluster.spare_nodes)
    return queue_remark(asked, longest_queue(asked), chain.jobs if chain else None)


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


def _unknown_emissions(known: Electricity) -> tuple[RecipeError, ...]:
    """Name what the profile lacks of the site's electricity: no other figure needs it."""
    unknown = [key for key, figure in known if figure is None]
    if not unknown:
        return ()
    problem = f"the profile lacks {' and '.join(unknown)}, so not all emissions are known"
    remedy = f"set cluster.electricity.{unknown[-1]}=NUMBER once the site or its grid says it"
    return (RecipeError("cluster.electricity", problem, remedy),)


def bill_of(course: Course, cluster: Cluster, hardware: Hardware) -> Bill:
    """Multiply out; energy is the devices' rated power times hours, as BLOOM's card counts."""
    work, failures, chain = course.work, course.failures, course.chain
    saving = work.saving
    hours, watts = course.total / HOUR, hardware.device_watts
    energy = None if watts is None else hours * cluster.ranks * watts / 1_000
    unit, price = "node-h", 1.0
    if not isinstance(cluster.accounting, str):
        unit, price = cluster.accounting.unit, cluster.accounting.per_node_hour
    starts = (failures.count if failures else 0.0) + (chain.jobs if chain else 1)
    return Bill(
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
        days=course.total / DAY,
        waiting_days=starts * cluster.waiting_hours * HOUR / DAY,
        queue=chain.queue if chain else None,
        jobs=chain.jobs if chain and chain.queue else None,
        submissions=course.submissions,
        start_up_seconds=course.start_up,
        checkpoints=CheckpointCost(
            count=work.checkpoints,
            bytes=saving.bytes,
            stall_seconds=work.stall,
            write_seconds=saving.write,
            hash_seconds=saving.hashing,
            read_seconds=saving.read,
            interval_seconds=work.interval,
            best_interval_seconds=course.best_interval,
            best_every_tokens=course.best_every_tokens,
        ),
        evaluations=InterruptionCost(count=work.evaluations, each_seconds=work.evaluation),
        failures=InterruptionCost(
            count=failures.count if failures else None,
            each_seconds=failures.each if failures else None,
        ),
    )
