"""The result of a layout search: the best layouts beside the published one, and why."""

from pydantic import BaseModel

from components.config.check import check_recipe
from components.config.rank_groups import RankGroups
from components.config.recipe import Recipe
from components.config.schema.sections import Parallelism
from components.planner.memory import Verdict
from components.planner.plan import Plan, plan_recipe
from components.planner.search import LayoutSearch
from components.planner.time import busy_seconds, layers_parts

GIB = 2**30
# Parts of a step that differ by less of it are left out.
WORTH_NAMING = 0.02


class FoundLayout(BaseModel, frozen=True):
    """One layout, planned whole; without seconds and days where they are not predicted."""

    layout: Parallelism
    text: str
    nodes: int
    microbatches: int
    peak_bytes: int
    verdict: Verdict
    step_seconds: float | None
    parts: dict[str, float] | None
    days: float | None


class RefusedLayout(BaseModel, frozen=True):
    """Why the rules do not let the published layout run there."""

    refused: str


class LayoutsFound(BaseModel, frozen=True):
    """What was looked at, the best layouts, best first, and the published one (``paper``)."""

    considered: int
    legal: int
    fitting: int
    seconds: float
    best: tuple[FoundLayout, ...]
    paper: FoundLayout | RefusedLayout
    why: tuple[str, ...]


def layouts_found(
    search: LayoutSearch, recipe: Recipe, published: Recipe | None, refusal: str
) -> LayoutsFound:
    """Plan the best layouts and the published one, which is null where ``refusal`` says why."""
    tree = recipe.model_dump(mode="json")
    layouts = (choice.degrees.model_dump(mode="json") for choice in search.best)
    chosen = [check_recipe(tree | {"parallelism": layout}) for layout in layouts]
    plans = [plan_recipe(one) for one in chosen]
    paper: FoundLayout | RefusedLayout = RefusedLayout(refused=refusal)
    why = _reasons_alone(plans[0], refusal)
    if published is not None:
        planned = plan_recipe(published)
        paper, why = _found(published, planned), _reasons(plans[0], planned)
    return LayoutsFound(
        **{key: getattr(search, key) for key in ("considered", "legal", "fitting", "seconds")},
        best=tuple(map(_found, chosen, plans)),
        paper=paper,
        why=tuple(why),
    )


def _found(recipe: Recipe, plan: Plan) -> FoundLayout:
    return FoundLayout(
        layout=recipe.parallelism,
        text=describe(recipe.parallelism),
        nodes=recipe.cluster.nodes,
        microbatches=plan.job.microbatches,
        peak_bytes=plan.peak_bytes,
        verdict=plan.verdict,
        step_seconds=plan.step_seconds,
        parts=plan.time.parts() if plan.time else None,
        days=plan.bill.days if plan.bill else None,
    )


def describe(degrees: Parallelism) -> str:
    """Write a layout in a line: the axes that it uses, then the settings that it has."""
    used = [f"{axis} {degree}" for axis, degree in degrees.used_axes.items()]
    again, stages = degrees.recompute, degrees.stages_per_rank
    text = f"{' x '.join(used) or 'one rank'}, ZeRO {degrees.zero}"
    text += f", microbatches of {degrees.microbatch_sequences}"
    if degrees.pipeline > 1:
        text += f", {degrees.schedule}" + (f" with {stages} stages a rank" * (stages > 1))
    if again != "none":
        text += f", recomputes {recomputed(degrees)}"
    return text


def recomputed(degrees: Parallelism) -> str:
    """Write what is recomputed, and of how many layers."""
    parts, every = degrees.recompute, degrees.recompute_every
    words = {"full": "all"}.get(parts, parts) if isinstance(parts, str) else " and ".join(parts)
    return words if every == 1 else f"{words} of every {every} layers"


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
