"""One plan: memory, time and cost of a recipe on its cluster, and what the profile lacks."""

from dataclasses import dataclass

from components.config.phases import recipes_of
from components.config.recipe import Recipe
from components.config.schema.cluster import Electricity, Hardware
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from components.planner.cost import CostEstimate, estimate_cost
from components.planner.interruptions import JobChain
from components.planner.job import TrainingJob
from components.planner.memory import Memory
from components.planner.queues import longest_queue, queue_remark, with_nodes
from components.planner.run_time import RunTimeline, plan_run_time
from components.planner.software import Calibration, SoftwareModel, software_of
from components.planner.step_plan import StepPlan, plan_steps

# Nine of ten measured steps differ by less than a third from the prediction on up to 16 nodes
# with measured links; where a figure is missing, the error is unknown and twice that is stated.
ERROR_FRACTION, MISSING_FACTOR = 0.33, 2.0


@dataclass(frozen=True, kw_only=True)
class Plan(StepPlan):
    """Predictions for one recipe; ``run`` and ``bill`` are None where ``time`` is.

    In a run with phases job, memory and time are those of the first phase, and ``phases`` has
    all; run and bill are of the whole run.
    ``missing`` names every figure that the plan did without, ``is_guess``: the time of a step
    needed one of them. ``calibration`` is how measured runs of the cluster correct the
    ``software``. ``limit`` is the limit of its queue that the run meets, with the nearest fix.
    """

    hardware: Hardware
    software: SoftwareModel
    calibration: Calibration | None
    missing: tuple[RecipeError, ...]
    is_guess: bool
    limit: RecipeError | None
    run: RunTimeline | None
    bill: CostEstimate | None
    phases: tuple[StepPlan, ...]

    @property
    def fullest(self) -> Memory:
        """The memory of the phase that needs most."""
        return max((self.memory, *(one.memory for one in self.phases)), key=lambda m: m.peak)

    @property
    def error_fraction(self) -> float:
        """By how much a step may be off: nine of ten measured ones were closer."""
        if self.calibration is not None:
            return self.calibration.time_error.held_out.p90
        return ERROR_FRACTION * (MISSING_FACTOR if self.is_guess else 1.0)


def plan_recipe(recipe: Recipe) -> Plan:
    """Predict from numbers alone: published and assumed figures and names are not read.

    Raises:
        RecipeError: the cluster has no physical profile.
    """
    cluster, hardware, run, bill = recipe.cluster, recipe.cluster.hardware, None, None
    if isinstance(hardware, str):
        raise RecipeError(
            "cluster.hardware",
            f"nobody has measured the cluster {cluster.name!r}",
            f"plan for a machine with a profile: cluster={recipe.home}",
        )
    software, calibration = software_of(cluster)
    remaining = filter(_has_steps, recipes_of(recipe).values())
    steps, error = plan_steps(remaining, hardware, software)
    missing = unmeasured = _missing_figures(hardware, steps[0].job)
    if error is None:
        run = plan_run_time(steps, hardware, software)
        bill = estimate_cost(run, cluster, hardware)
        missing = (*missing, *run.missing, *_unknown_emissions(cluster.electricity))
    else:
        missing = (error, *missing)
    return Plan(
        recipe=recipe,
        job=steps[0].job,
        memory=steps[0].memory,
        time=steps[0].time,
        hardware=hardware,
        software=software,
        calibration=calibration,
        missing=missing,
        is_guess=bool(unmeasured or error),
        limit=_limit(cluster, run.chain if run else None),
        run=run,
        bill=bill,
        phases=steps if steps[1:] else (),
    )


def _has_steps(phase: Recipe) -> bool:
    """Whether the run takes steps of a phase, or its parent took all of them."""
    return phase.span.end_step > phase.first_step


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
    if layout.ranks > job.devices_per_node and len(hardware.across.by_nodes) < 2:
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
