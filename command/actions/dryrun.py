"""Run the real step of a rank of each role on tensors without values; judge its memory."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from command.arguments import Arguments
from command.compose import compose_recipe
from command.outcome import ActionResult, Status, print_result
from components.config.schema.recipe import Recipe
from components.dryrun.drive import RoleError, rehearse_roles
from components.dryrun.judge import RoleResult, highest, judge
from components.planner.memory import verdict_of
from components.planner.plan import Plan, plan_recipe
from components.terminal import console, say

Tree = Mapping[str, Any]
GIB = 2**30
CATEGORIES = ("weights", "gradients", "optimizer", "casts", "activations", "temporary")
NOTES = (
    "In the device's peak are the plan's losses of the allocator and what is there before any "
    "tensor; the categories are tensors alone.",
    "Kernels are those of the device, as far as fake tensors tell: docs/dryrun.md says which "
    "stands for what.",
)


def _print(tree: Tree) -> None:
    out = console(width=150)
    for table in (_memory(tree), _collectives(tree), _flops(tree), _differences(tree)):
        if table.row_count:
            out.print(table)
            out.print()
    for role in tree["roles"]:
        moment, rehearsed = role["memory"]["moment"], role["rehearsed_microbatches"]
        text = f"{role['name']}: fullest in the {moment['phase']}, {moment['operator']}, "
        text += f"{moment['microbatches_begun']} microbatches begun"
        if rehearsed < role["microbatches"]:
            text += f"; {rehearsed} of {role['microbatches']} rehearsed, the counts continued"
        out.print(text)
    for note in NOTES:
        out.print(note)


def _memory(tree: Tree) -> Table:
    memory = tree["memory"]
    title = f"memory, GiB a device of {memory['usable_bytes'] / GIB:.1f} usable: "
    table = _table(title + memory["verdict"], "role", "ranks", *CATEGORIES, "peak", "planned")
    for role in tree["roles"]:
        held = role["memory"]["moment"]["by_category"]
        cells = [f"{held[name] / GIB:.2f}" for name in CATEGORIES]
        peaks = [f"{role['memory'][key] / GIB:.2f}" for key in ("peak_bytes", "planned_bytes")]
        table.add_row(role["name"], f"{role['stands_for_ranks']:,}", *cells, *peaks)
    return table


def _collectives(tree: Tree) -> Table:
    title = "collectives of a rank in a step; sent: by a ring"
    table = _table(title, "role", "axis", "operation", "dtype", "ranks", "calls", "GiB", "sent")
    for role in tree["roles"]:
        for call in sorted(role["collectives"], key=lambda call: -call["bytes"]):
            table.add_row(
                *(role["name"], call["axis"], call["operation"], call["dtype"]),
                *(f"{call['ranks']:,}", f"{call['count']:,}"),
                *(f"{call[key] / GIB:.3f}" for key in ("bytes", "sent_bytes")),
            )
    return table


def _flops(tree: Tree) -> Table:
    operators = Counter[str]()
    for role in tree["roles"]:
        operators.update(role["flops"])
    table = _table("TFLOP of a rank in a step", "role", *operators, "all")
    for role in tree["roles"]:
        cells = [f"{role['flops'].get(name, 0) / 1e12:.2f}" for name in operators]
        table.add_row(role["name"], *cells, f"{sum(role['flops'].values()) / 1e12:.2f}")
    return table


def _differences(tree: Tree) -> Table:
    table = _table("more than 5 % from the plan", "role", "figure", "planned", "found", "")
    for role in tree["roles"]:
        for one in (each for each in role["differences"] if each["is_named"]):
            scale = 1e12 if one["figure"] == "flops" else GIB
            planned, found = one["planned"], one["found"]
            cells = [f"{planned / scale:.2f}", f"{found / scale:.2f}"]
            off = f"{found / planned - 1:+.0%}" if planned else "not in the plan"
            table.add_row(role["name"], one["figure"], *cells, off)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right", no_wrap=place == 0)
    return table


def run(arguments: Arguments) -> ActionResult:
    """Print tables or one JSON object; a layout that does not fit does not hold."""
    recipe = compose_recipe(arguments)
    plan = plan_recipe(recipe)
    began = time.perf_counter()
    try:
        found = rehearse_roles(recipe, say)
    except RoleError as error:
        say(str(error))
        return ActionResult(Status.DOES_NOT_HOLD)
    judged = [judge(role, seen, plan) for role, seen in found.items()]
    tree = _as_json(recipe, plan, judged, seconds=time.perf_counter() - began)
    print_result(arguments.output, tree, lambda: _print(tree), allow_nan=False)
    fits = tree["memory"]["verdict"] != "does_not_fit"
    return ActionResult(Status.DONE if fits else Status.DOES_NOT_HOLD)


def _as_json(
    recipe: Recipe, plan: Plan, judged: Sequence[RoleResult], *, seconds: float
) -> dict[str, Any]:
    """Return what ``output=json`` promises; bytes, counts and FLOPs a step."""
    peak, usable = max(one.peak_bytes for one in judged), plan.memory.usable_bytes
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


def _role(judged: RoleResult) -> dict[str, Any]:
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
            {key: getattr(one, key) for key in ("figure", "planned", "found", "is_named")}
            for one in judged.differences
        ],
    }
