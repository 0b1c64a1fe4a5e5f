"""Dry run: execute a step of one rank per role on fake tensors, and check its memory."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from command.arguments import Arguments
from command.composition.compose import compose_recipe
from command.outcome import ActionResult, Status, print_result
from components.config.recipe import Recipe
from components.dryrun.rank_roles import (
    RoleError,
    RoleResult,
    compare_role,
    find_peak,
    rehearse_roles,
)
from components.planner.memory import verdict_of
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from components.report.tables import Grid, terminal_table
from components.terminal import create_console, log_line

JsonTree = Mapping[str, Any]
GIB = 2**30
CATEGORIES = ("weights", "gradients", "optimizer", "casts", "activations", "temporary")
NOTES = (
    "The peak includes allocator losses and memory in use before the first tensor, as in the "
    "plan; the categories count only tensors.",
    "Kernels are chosen as on the device, as far as fake tensors allow: docs/dryrun.md lists "
    "the substitutes.",
)


def _print(tree: JsonTree) -> None:
    out, roles = create_console(width=150), tree["roles"]
    usable, verdict = tree["memory"]["usable_bytes"], tree["memory"]["verdict"]
    memory = f"memory, GiB per device of {usable / GIB:.1f} usable: {verdict}"
    calls = ("axis", "operation", "dtype", "ranks", "calls", "GiB", "sent")
    names = dict.fromkeys(name for role in roles for name in role["flops"])
    for title, columns, rows in (
        (memory, ("ranks", *CATEGORIES, "peak", "planned"), _memory),
        ("collectives per rank and step; sent: with a ring", calls, _collectives),
        ("TFLOP per rank and step", (*names, "all"), partial(_flops, names)),
        ("more than 5 % off the plan", ("figure", "planned", "found", ""), _differences),
    ):
        cells = [(role["name"], *row) for role in roles for row in rows(role)]
        if cells:
            grid = Grid(columns=("role", *columns), rows=cells, title=title)
            out.print(terminal_table(grid))
            out.print()
    for role in roles:
        moment, rehearsed = role["memory"]["moment"], role["rehearsed_microbatches"]
        text = f"{role['name']}: peak in the {moment['phase']}, {moment['operator']}, "
        text += f"{moment['microbatches_begun']} microbatches started"
        if rehearsed < role["microbatches"]:
            text += f"; {rehearsed} of {role['microbatches']} rehearsed, counts extrapolated"
        out.print(text)
    for note in NOTES:
        out.print(note)


def _memory(role: JsonTree) -> Iterator[list[str]]:
    memory = role["memory"]
    categories = [memory["moment"]["by_category"][name] for name in CATEGORIES]
    figures = (*categories, memory["peak_bytes"], memory["planned_bytes"])
    yield [f"{role['stands_for_ranks']:,}", *(f"{figure / GIB:.2f}" for figure in figures)]


def _collectives(role: JsonTree) -> Iterator[list[str]]:
    for call in sorted(role["collectives"], key=lambda call: -call["bytes"]):
        yield [
            *(call["axis"], call["operation"], call["dtype"]),
            *(f"{call['ranks']:,}", f"{call['count']:,}"),
            *(f"{call[key] / GIB:.3f}" for key in ("bytes", "sent_bytes")),
        ]


def _flops(names: Iterable[str], role: JsonTree) -> Iterator[list[str]]:
    flops = role["flops"]
    counts = (*(flops.get(name, 0) for name in names), sum(flops.values()))
    yield [f"{count / 1e12:.2f}" for count in counts]


def _differences(role: JsonTree) -> Iterator[list[str]]:
    for difference in (
        difference for difference in role["differences"] if difference["is_named"]
    ):
        scale = 1e12 if difference["figure"] == "flops" else GIB
        planned, measured = difference["planned"], difference["found"]
        off = f"{measured / planned - 1:+.0%}" if planned else "not in the plan"
        yield [difference["figure"], f"{planned / scale:.2f}", f"{measured / scale:.2f}", off]


def run(arguments: Arguments) -> ActionResult:
    """Rehearse each role and print tables or JSON; `DOES_NOT_HOLD` if it does not fit."""
    recipe = compose_recipe(arguments)
    plan = plan_recipe(recipe)
    began = time.perf_counter()
    try:
        rehearsals = rehearse_roles(recipe, log_line)
    except RoleError as error:
        log_line(str(error))
        return ActionResult(Status.DOES_NOT_HOLD)
    judged = [compare_role(role, rehearsal, plan) for role, rehearsal in rehearsals.items()]
    tree = _as_json(recipe, plan, judged, seconds=time.perf_counter() - began)
    print_result(arguments.output, tree, lambda: _print(tree))
    fits = tree["memory"]["verdict"] != "does_not_fit"
    return ActionResult(Status.DONE if fits else Status.DOES_NOT_HOLD)


def _as_json(
    recipe: Recipe, plan: Plan, judged: Sequence[RoleResult], *, seconds: float
) -> dict[str, Any]:
    """Return the object of ``output=json``, with bytes, counts and FLOPs per step."""
    peak, usable = max(result.peak_bytes for result in judged), plan.memory.usable_bytes
    return {
        "recipe": recipe.name,
        "cluster": recipe.cluster.name,
        "ranks": recipe.cluster.ranks,
        "seconds": round(seconds, 1),
        "memory": {
            "peak_bytes": round(peak),
            "planned_bytes": round(plan.memory.fullest_rank_bytes),
            "device_bytes": plan.hardware.memory_bytes,
            "usable_bytes": usable,
            "verdict": verdict_of(peak, usable),
        },
        "roles": [_role(result) for result in judged],
    }


def _role(judged: RoleResult) -> dict[str, Any]:
    role, rehearsal = judged.role, judged.trace
    return {
        "name": role.role_name,
        "rank": role.rank,
        "stands_for_ranks": role.stands_for,
        "layers": list(role.layers),
        "microbatches": rehearsal["microbatches"],
        "rehearsed_microbatches": rehearsal["rehearsed_microbatches"],
        "seconds": round(rehearsal["seconds"], 1),
        "host_bytes": rehearsal["host_bytes"],
        "memory": {
            "peak_bytes": round(judged.peak_bytes),
            "planned_bytes": round(judged.planned_bytes),
            "verdict": judged.verdict,
            "moment": find_peak(rehearsal),
            "by_phase": rehearsal["peaks"],
        },
        "collectives": rehearsal["collectives"],
        "flops": rehearsal["flops"],
        "differences": [
            {
                key: getattr(difference, key)
                for key in ("figure", "planned", "found", "is_named")
            }
            for difference in judged.differences
        ],
    }
