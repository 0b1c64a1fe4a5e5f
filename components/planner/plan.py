"""Plan of a recipe, and of the layouts that a search found, compared to the published one."""

from components.config.check import check_recipe
from components.config.phases import recipes_of
from components.config.rank_groups import RankGroups
from components.config.recipe import Recipe
from components.config.schema.cluster import Electricity, Hardware
from components.errors import RecipeError
from components.planner.job import TrainingJob
from components.planner.memory import GIB
from components.planner.passes import busy_seconds, layers_parts
from components.planner.queues import queue_of_run, queue_remark, with_spares
from components.planner.result import LayoutPlans, Plan
from components.planner.run_time import plan_run_time
from components.planner.search import LayoutSearch
from components.planner.software import Calibration, software_of
from components.planner.time import plan_steps

# Differences below this fraction of a step are not listed.
WORTH_NAMING = 0.02


def plan_recipe(recipe: Recipe, measured: Calibration | None = None) -> Plan:
    """Predict from numbers only, not from published figures; RecipeError without a profile.

    ``measured`` replaces the cluster's calibration.
    """
    cluster, hardware, run = recipe.cluster, recipe.cluster.hardware, None
    if isinstance(hardware, str):
        raise RecipeError(
            "cluster.hardware",
            f"there is no measured hardware profile of the cluster {cluster.name!r}",
            f"plan for a machine with a profile: cluster={recipe.reference_cluster}",
        )
    software, calibration = software_of(cluster, measured)
    phases = recipes_of(recipe).values()
    own = (phase for phase in phases if phase.phase_span.end_step > phase.first_step)
    steps, error = plan_steps(own, hardware, software)  # without steps that a parent took
    missing = unmeasured = _missing_figures(hardware, steps[0].job)
    if error is None:
        run = plan_run_time(steps, hardware, software)
        missing = (*missing, *run.missing, *_unknown_emissions(cluster.electricity))
    else:
        missing = (error, *missing)
    jobs = run.cost.jobs if run else None
    return Plan(
        recipe=recipe,
        job=steps[0].job,
        memory=steps[0].memory,
        time=steps[0].time,
        steps=steps,
        hardware=hardware,
        software=software,
        calibration=calibration,
        missing=missing,
        is_guess=bool(unmeasured or error),
        limit=queue_remark(with_spares(cluster), queue_of_run(cluster), jobs),
        run=run,
    )


def _missing_figures(hardware: Hardware, job: TrainingJob) -> tuple[RecipeError, ...]:
    """List the numbers that the profile lacks, with the way to measure each."""
    path, layout = "cluster.hardware", job.layout
    errors = []
    if hardware.usable_bytes is None and hardware.context_bytes is None:
        problem = "not measured; all of the device's memory counts as usable"
        remedy = "read the free memory of a device after the first collective, before any model"
        errors.append(RecipeError(f"{path}.context_bytes", problem, remedy))
    key = "all_gather_gigabytes_per_second"
    if layout.tensor > 1 and hardware.inside.all_gather_gigabytes_per_second is None:
        problem = "not measured; a part of the vendor's figure is used"
        remedy = "run all_gather_perf -b 256M -e 256M of nccl-tests, or oneCCL's benchmark"
        errors.append(RecipeError(f"{path}.inside.{key}", problem, remedy))
    nodes, counts = layout.num_ranks / job.devices_per_node, dict(hardware.across.by_nodes)
    if nodes > 1 and len(counts) < 2 and nodes > max(counts, default=0):
        problem = "too few node counts are measured to know how bandwidth falls"
        remedy = "run all_reduce_perf -b 256M -e 256M on 2, 4, 8, ... nodes"
        errors.append(RecipeError(f"{path}.across.by_nodes", problem, remedy))
    return tuple(errors)


def _unknown_emissions(known: Electricity) -> tuple[RecipeError, ...]:
    """Report missing numbers on the site's electricity. Only the emissions depend on them."""
    unknown = [key for key, figure in known if figure is None]
    if not unknown:
        return ()
    problem = f"the profile lacks {' and '.join(unknown)}, so not all emissions are known"
    remedy = f"set cluster.electricity.{unknown[-1]}=NUMBER once the site or its grid says it"
    return (RecipeError("cluster.electricity", problem, remedy),)


def plan_layouts(
    search: LayoutSearch, recipe: Recipe, published: Recipe | None, refusal: str
) -> LayoutPlans:
    """Plan the best layouts and the published one (None if ``refusal`` gives a reason)."""
    tree = recipe.model_dump(mode="json")
    layouts = (choice.layout_degrees.model_dump(mode="json") for choice in search.best)
    best = tuple(
        plan_recipe(check_recipe(tree | {"parallelism": layout})) for layout in layouts
    )
    paper, why = None, _reasons_alone(best[0], refusal)
    if published is not None:
        paper = plan_recipe(published)
        why = _reasons(best[0], paper)
    return LayoutPlans(
        counts=search, best=best, published=paper, refusal=refusal, why=tuple(why)
    )


def _reasons(best: Plan, published: Plan) -> list[str]:
    places = _places(best.job.rank_groups)
    if best.job == published.job:
        return ["the published layout is the best one found", places]
    memory = _memory_reason(best, published)
    if best.time is None or published.time is None:
        return [memory, places]
    new, old = best.time.total_seconds, published.time.total_seconds
    error = max(best.error_fraction, published.error_fraction)
    weight = "more than" if max(new, old) / min(new, old) > 1 + error else "within"
    step = (
        f"a step of {new:.3g} s instead of {old:.3g} s ({new / old - 1:+.0%}), {weight} the "
        f"{error:.0%} by which a prediction may be off"
    )
    ours, theirs = step_parts(best), step_parts(published)
    gaps = {name: ours[name] - theirs[name] for name in ours}
    worth = [
        f"{name} {abs(gap):.3g} s {'more' if gap > 0 else 'less'}"
        for name, gap in sorted(gaps.items(), key=lambda item: -abs(item[1]))
        if abs(gap) >= WORTH_NAMING * old
    ]
    differs = [f"what differs: {', '.join(worth)}"] if worth else []
    return [step, *differs, memory, places]


def _reasons_alone(best: Plan, refusal: str) -> list[str]:
    reasons = [f"the published layout cannot run there: {refusal}"]
    if best.time is not None:
        parts = sorted(step_parts(best).items(), key=lambda item: -item[1])
        least = WORTH_NAMING * best.time.total_seconds
        worth = (f"{name} {seconds:.3g} s" for name, seconds in parts if seconds >= least)
        reasons.append(f"what a step goes to: {', '.join(worth)}")
    return [*reasons, _places(best.job.rank_groups)]


def step_parts(plan: Plan) -> dict[str, float]:
    """Return the seconds of a step by part, on the slowest rank."""
    assert plan.time is not None
    job, speed = plan.job, plan.software.speed
    busy = busy_seconds(job, plan.hardware, speed)
    rank, parts = busy.index(max(busy)), dict[str, float]()
    for name, seconds in layers_parts(job, rank, plan.hardware, speed).items():
        parts[name] = seconds * job.microbatches
    parts["head, host and messages"] = plan.time.microbatches - sum(parts.values())
    parts["waiting in the pipeline"] = plan.time.bubble
    parts["averaging gradients"] = plan.time.reduction
    parts["the optimizer"] = plan.time.optimizer
    return parts


def _memory_reason(best: Plan, published: Plan) -> str:
    words = {"fits": "fits", "tight": "is tight", "does_not_fit": "does not fit"}
    new, old = best.memory, published.memory
    usable = new.usable_bytes / GIB
    text = (
        f"{words[new.memory_verdict]}: {new.fullest_rank_bytes / GIB:.1f} GiB of "
        f"{usable:.1f} on the fullest rank; the published layout "
        f"{words[old.memory_verdict]}: {old.fullest_rank_bytes / GIB:.1f} GiB"
    )
    if new.fullest_rank_bytes == old.fullest_rank_bytes:
        return text
    ours, theirs = (
        max(memory.ranks, key=lambda rank: rank.peak_bytes).bytes_by_part()
        for memory in (new, old)
    )
    gaps = {name: ours[name] - size for name, size in theirs.items() if name != "peak_bytes"}
    part = max(gaps, key=lambda name: abs(gaps[name]))
    sign = "more" if gaps[part] > 0 else "less"
    return f"{text}; {part.removesuffix('_bytes')} takes {abs(gaps[part]) / GIB:.1f} GiB {sign}"


def _places(groups: RankGroups) -> str:
    nodes = {axis: groups.find_group(axis).nodes for axis in groups.layout.used_axes}
    inside = [axis for axis, count in nodes.items() if count == 1]
    across = [f"{axis} over {count:,} nodes" for axis, count in nodes.items() if count > 1]
    parts = [f"inside a node: {', '.join(inside)}"] if inside else []
    parts += [f"across: {', '.join(across)}"] if across else []
    return "; ".join(parts) or "one rank"
