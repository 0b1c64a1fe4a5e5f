"""Run the real step of a rank of each role on tensors without values; judge its memory."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table

from command.arguments import Arguments
from command.composition.compose import compose_recipe
from command.outcome import ActionResult, Status, print_result
from components.config.recipe import Recipe
from components.dryrun.roles import RoleError, RoleResult, highest, judge, rehearse_roles
from components.planner.memory import verdict_of
from components.planner.plan import plan_recipe
from components.planner.result import Plan
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
    out, roles = console(width=150), tree["roles"]
    usable, verdict = tree["memory"]["usable_bytes"], tree["memory"]["verdict"]
    memory = f"memory, GiB a device of {usable / GIB:.1f} usable: {verdict}"
    calls = ("axis", "operation", "dtype", "ranks", "calls", "GiB", "sent")
    names = dict.fromkeys(name for role in roles for name in role["flops"])
    for title, columns, rows in (
        (memory, ("ranks", *CATEGORIES, "peak", "planned"), _memory),
        ("collectives of a rank in a step; sent: by a ring", calls, _collectives),
        ("TFLOP of a rank in a step", (*names, "all"), partial(_flops, names)),
        ("more than 5 % from the plan", ("figure", "planned", "found", ""), _differences),
    ):
        table = Table(box=None, title=title, title_justify="left")
        table.add_column("role", no_wrap=True)
        for column in columns:
            table.add_column(column, justify="right")
        for role in roles:
            for cells in rows(role):
                table.add_row(role["name"], *cells)
        if table.row_count:
            out.print(table)
            out.print()
    for role in roles:
        moment, rehearsed = role["memory"]["moment"], role["rehearsed_microbatches"]
        text = f"{role['name']}: fullest in the {moment['phase']}, {moment['operator']}, "
        text += f"{moment['microbatches_begun']} microbatches begun"
        if rehearsed < role["microbatches"]:
            text += f"; {rehearsed} of {role['microbatches']} rehearsed, the counts continued"
        out.print(text)
    for note in NOTES:
        out.print(note)


def _memory(role: Tree) -> Iterator[list[str]]:
    memory = role["memory"]
    held = [memory["moment"]["by_category"][name] for name in CATEGORIES]
    figures = (*held, memory["peak_bytes"], memory["planned_bytes"])
    yield [f"{role['stands_for_ranks']:,}", *(f"{figure / GIB:.2f}" for figure in figures)]


def _collectives(role: Tree) -> Iterator[list[str]]:
    for call in sorted(role["collectives"], key=lambda call: -call["bytes"]):
        yield [
            *(call["axis"], call["operation"], call["dtype"]),
            *(f"{call['ranks']:,}", f"{call['count']:,}"),
            *(f"{call[key] / GIB:.3f}" for key in ("bytes", "sent_bytes")),
        ]


def _flops(names: Iterable[str], role: Tree) -> Iterator[list[str]]:
    flops = role["flops"]
    counts = (*(flops.get(name, 0) for name in names), sum(flops.values()))
    yield [f"{count / 1e12:.2f}" for count in counts]


def _differences(role: Tree) -> Iterator[list[str]]:
    for one in (each for each in role["differences"] if each["is_named"]):
        scale = 1e12 if one["figure"] == "flops" else GIB
        planned, found = one["planned"], one["found"]
        off = f"{found / planned - 1:+.0%}" if planned else "not in the plan"
        yield [one["figure"], f"{planned / scale:.2f}", f"{found / scale:.2f}", off]


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
    print_result(arguments.output, tree, lambda: _print(tree))
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
