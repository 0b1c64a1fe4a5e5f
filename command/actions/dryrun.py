"""Run the real step of a rank of each role on tensors without values; judge its memory."""

import json
import time
from collections.abc import Sequence
from typing import Any

from command.arguments import Arguments
from command.compose import compose_recipe
from command.dryrun_text import print_dryrun
from command.outcome import Outcome, Status
from components.dryrun.drive import RoleError, rehearse_roles
from components.dryrun.judge import Judged, highest, judge
from components.planner.memory import verdict_of
from components.planner.plan import Plan, plan_recipe
from components.spec.recipe import Recipe
from components.terminal import say, tell


def run(arguments: Arguments) -> Outcome:
    """Print tables or one JSON object; a layout that does not fit does not hold."""
    recipe = compose_recipe(arguments)
    plan = plan_recipe(recipe)
    began = time.perf_counter()
    try:
        found = rehearse_roles(recipe, say)
    except RoleError as error:
        say(str(error))
        return Outcome(Status.DOES_NOT_HOLD)
    judged = [judge(role, seen, plan) for role, seen in found.items()]
    tree = as_json(recipe, plan, judged, seconds=time.perf_counter() - began)
    if arguments.output == "json":
        tell(json.dumps(tree, allow_nan=False))
    else:
        print_dryrun(tree)
    fits = tree["memory"]["verdict"] != "does_not_fit"
    return Outcome(Status.DONE if fits else Status.DOES_NOT_HOLD)


def as_json(
    recipe: Recipe, plan: Plan, judged: Sequence[Judged], *, seconds: float
) -> dict[str, Any]:
    """Return what was found as ``output=json`` promises it; bytes, counts and FLOPs a step."""
    peak = max(one.peak_bytes for one in judged)
    usable = plan.memory.usable_bytes
    return {
        "recipe": recipe.name,
        "cluster": recipe.cluster.name,
        "ranks": recipe.cluster.ranks,
        "seconds": round(seconds, 1),
        "memory": {
            "peak_bytes": round(peak),
            "planned_bytes": round(plan.memory.peak),
            "device_bytes": plan.hardware.memory_bytes,
            "usable_bytes": usable,
            "verdict": verdict_of(peak, usable),
        },
        "roles": [_role(one) for one in judged],
    }


def _role(judged: Judged) -> dict[str, Any]:
    role, found = judged.role, judged.found
    return {
        "name": role.name,
        "rank": role.rank,
        "stands_for_ranks": role.stands_for,
        "layers": list(role.layers),
        "microbatches": found["microbatches"],
        "rehearsed_microbatches": found["rehearsed_microbatches"],
        "seconds": round(found["seconds"], 1),
        "host_bytes": found["host_bytes"],
        "memory": {
            "peak_bytes": round(judged.peak_bytes),
            "planned_bytes": round(judged.planned_bytes),
            "verdict": judged.verdict,
            "moment": highest(found),
            "by_phase": found["peaks"],
        },
        "collectives": found["collectives"],
        "flops": found["flops"],
        "differences": [
            {
                "figure": one.figure,
                "planned": one.planned,
                "found": one.found,
                "is_named": one.is_named,
            }
            for one in judged.differences
        ],
    }
