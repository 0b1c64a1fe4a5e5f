"""The best layouts of a search beside the published one, each planned whole, and why."""

from components.config.check import check_recipe
from components.config.rank_groups import RankGroups
from components.config.recipe import Recipe
from components.planner.memory import GIB
from components.planner.passes import busy_seconds, layers_parts
from components.planner.plan import LayoutsFound, Plan, plan_recipe
from components.planner.search import LayoutSearch

# Parts of a step that differ by less of it are left out.
WORTH_NAMING = 0.02


def layouts_found(
    search: LayoutSearch, recipe: Recipe, published: Recipe | None, refusal: str
) -> LayoutsFound:
    """Plan the best layouts and the published one, which is null where ``refusal`` says why."""
    tree = recipe.model_dump(mode="json")
    layouts = (choice.degrees.model_dump(mode="json") for choice in search.best)
    best = tuple(plan_recipe(check_recipe(tree | {"parallelism": one})) for one in layouts)
    paper, why = None, _reasons_alone(best[0], refusal)
    if published is not None:
        paper = plan_recipe(published)
        why = _reasons(best[0], paper)
    return LayoutsFound(
        counts=search, best=best, published=paper, refusal=refusal, why=tuple(why)
    )


def _reasons(best: Plan, published: Plan) -> list[str]:
    places = _places(best.job.groups)
    if best.job == published.job:
        return ["the published layout is the best one found", places]
    memory = _memory_reason(best, published)
    if best.time is None or published.time is None:
        return [memory, places]
    new, old = best.time.total, published.time.total
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
    said = [f"the published layout cannot run there: {refusal}"]
    if best.time is not None:
        parts = sorted(step_parts(best).items(), key=lambda item: -item[1])
        least = WORTH_NAMING * best.time.total
        worth = (f"{name} {seconds:.3g} s" for name, seconds in parts if seconds >= least)
        said.append(f"what a step goes to: {', '.join(worth)}")
    return [*said, _places(best.job.groups)]


def step_parts(plan: Plan) -> dict[str, float]:
    """Name what a step's seconds go to, on the rank that sets the pace."""
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
        f"{words[new.verdict]}: {new.peak / GIB:.1f} GiB of {usable:.1f} on the fullest rank; "
        f"the published layout {words[old.verdict]}: {old.peak / GIB:.1f} GiB"
    )
    if new.peak == old.peak:
        return text
    ours, theirs = (max(one.ranks, key=lambda rank: rank.peak).parts() for one in (new, old))
    gaps = {name: ours[name] - size for name, size in theirs.items() if name != "peak_bytes"}
    part = max(gaps, key=lambda name: abs(gaps[name]))
    sign = "more" if gaps[part] > 0 else "less"
    return f"{text}; {part.removesuffix('_bytes')} takes {abs(gaps[part]) / GIB:.1f} GiB {sign}"


def _places(groups: RankGroups) -> str:
    nodes = {axis: groups.along(axis).nodes for axis in groups.layout.used_axes}
    inside = [axis for axis, count in nodes.items() if count == 1]
    across = [f"{axis} over {count:,} nodes" for axis, count in nodes.items() if count > 1]
    parts = [f"inside a node: {', '.join(inside)}"] if inside else []
    parts += [f"across: {', '.join(across)}"] if across else []
    return "; ".join(parts) or "one rank"
