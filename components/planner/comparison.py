"""Why one layout is better than another: what part of the time or the memory decides."""

from components.config.schema.sections import Parallelism
from components.planner.communication import group_of
from components.planner.job import ParallelLayout
from components.planner.plan import Plan
from components.planner.time import busy_seconds, layer_parts

GIB = 2**30
AXES = ("data", "tensor", "pipeline", "expert", "context")
# Parts of a step that differ by less of it are left out.
WORTH_NAMING = 0.02


def describe(degrees: Parallelism) -> str:
    """Write a layout in a line: the axes that it uses, then the settings that it has."""
    used = [f"{axis} {getattr(degrees, axis)}" for axis in AXES if getattr(degrees, axis) > 1]
    again, stages = degrees.recompute, degrees.stages_per_rank
    text = f"{' x '.join(used) or 'one rank'}, ZeRO {degrees.zero}"
    text += f", microbatches of {degrees.microbatch_sequences}"
    if degrees.pipeline > 1:
        text += f", {degrees.schedule}" + (f" with {stages} stages a rank" * (stages > 1))
    if again != "none":
        text += ", recomputes " + ("all" if isinstance(again, str) else " and ".join(again))
    return text


def reasons(best: Plan, published: Plan) -> list[str]:
    """Set the best layout beside the published one, a sentence for each thing that decides."""
    if best.job == published.job:
        return ["the published layout is the best one found", _places(best.job.layout)]
    memory = _memory(best, published)
    if best.time is None or published.time is None:
        return [memory, _places(best.job.layout)]
    return [_step(best, published), *_parts(best, published), memory, _places(best.job.layout)]


def reasons_alone(best: Plan, refusal: str) -> list[str]:
    """Say what decides where the rules refuse the published layout, for ``refusal``."""
    said = [f"the published layout cannot run there: {refusal}"]
    if best.time is not None:
        parts = sorted(step_parts(best).items(), key=lambda item: -item[1])
        worth = [
            f"{name} {s:.3g} s" for name, s in parts if s >= WORTH_NAMING * best.time.total
        ]
        said.append(f"what a step goes to: {', '.join(worth)}")
    return [*said, _places(best.job.layout)]


def _step(best: Plan, published: Plan) -> str:
    assert best.time is not None
    assert published.time is not None
    new, old = best.time.total, published.time.total
    error = max(best.error_fraction, published.error_fraction)
    weight = "more than" if max(new, old) / min(new, old) > 1 + error else "within"
    text = f"a step of {new:.3g} s instead of {old:.3g} s ({new / old - 1:+.0%}), {weight} the "
    return text + f"{error:.0%} by which a prediction may be off"


def step_parts(plan: Plan) -> dict[str, float]:
    """Name what a step's seconds go to, on the rank that sets the pace."""
    assert plan.time is not None
    job, speed = plan.job, plan.software.speed
    busy = busy_seconds(job, plan.hardware, speed)
    layout, rank = job.layout, busy.index(max(busy))
    layers = sum(layout.layers[rank :: layout.pipeline]) * job.microbatches
    parts = {
        name: seconds * layers
        for name, seconds in layer_parts(job, plan.hardware, speed).items()
    }
    parts["head, host and messages"] = plan.time.microbatches - sum(parts.values())
    parts["waiting in the pipeline"] = plan.time.bubble
    parts["averaging gradients"] = plan.time.reduction
    parts["the optimizer"] = plan.time.optimizer
    return parts


def _parts(best: Plan, published: Plan) -> list[str]:
    """Name the parts whose seconds differ, the largest difference first."""
    assert published.time is not None
    new, old = step_parts(best), step_parts(published)
    gaps = {name: new[name] - old[name] for name in new}
    worth = WORTH_NAMING * published.time.total
    said = [
        f"{name} {abs(gap):.3g} s {'more' if gap > 0 else 'less'}"
        for name, gap in sorted(gaps.items(), key=lambda item: -abs(item[1]))
        if abs(gap) >= worth
    ]
    return [f"what differs: {', '.join(said)}"] if said else []


def _memory(best: Plan, published: Plan) -> str:
    new, old = best.memory, published.memory
    usable = new.usable_bytes / GIB
    text = f"{_verdict(best)}: {new.peak / GIB:.1f} GiB of {usable:.1f} on the fullest rank; "
    text += f"the published layout {_verdict(published)}: {old.peak / GIB:.1f} GiB"
    if best.memory.peak == published.memory.peak:
        return text
    gaps = {name: _fullest(best)[name] - size for name, size in _fullest(published).items()}
    part = max(gaps, key=lambda name: abs(gaps[name]))
    sign = "more" if gaps[part] > 0 else "less"
    return f"{text}; {part.removesuffix('_bytes')} takes {abs(gaps[part]) / GIB:.1f} GiB {sign}"


def _verdict(plan: Plan) -> str:
    words = {"fits": "fits", "tight": "is tight", "does_not_fit": "does not fit"}
    return words[plan.memory.verdict]


def _fullest(plan: Plan) -> dict[str, int]:
    parts = max(plan.memory.ranks, key=lambda rank: rank.peak).parts()
    return {name: size for name, size in parts.items() if name != "peak_bytes"}


def _places(layout: ParallelLayout) -> str:
    """Say which axes stay inside a node and which go across."""
    used = [axis for axis in AXES if getattr(layout, axis) > 1]
    nodes = {axis: group_of(layout, axis).nodes for axis in used}
    inside = [axis for axis in used if nodes[axis] == 1]
    across = [f"{axis} over {nodes[axis]:,} nodes" for axis in used if nodes[axis] > 1]
    said = [f"inside a node: {', '.join(inside)}"] if inside else []
    return (
        "; ".join([*said, *([f"across: {', '.join(across)}"] if across else [])]) or "one rank"
    )
