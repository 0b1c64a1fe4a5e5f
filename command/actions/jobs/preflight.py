"""Preflight: check the nodes of this allocation, or this machine, before ranks start."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Table

from cluster.preflight import is_inside, look_at_allocation
from command.arguments import Arguments
from command.composition.compose import compose_recipe
from command.outcome import ActionResult, Status, print_result
from command.received_site import check_received_site
from command.recipe.path_checks import open_run
from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.preflight.node import look_alone
from components.preflight.verdict import PreflightVerdict
from components.run.folder import RunFolder
from components.sharing.prepared import find_prepared
from components.terminal import create_console


def _print(verdict: PreflightVerdict) -> None:
    out = create_console(width=160)
    table = Table("node", "check", "found", "expected", "rule", "verdict", box=None)
    bad: dict[tuple[str, str], list[str]] = {}
    for node in verdict.nodes:
        for finding in node.findings:
            table.add_row(
                node.node,
                finding.check,
                finding.found,
                finding.expected,
                finding.rule,
                finding.verdict,
            )
        for finding in node.bad_findings:
            bad.setdefault((finding.check, finding.remedy), []).append(node.node)
    out.print(table)
    for (check, remedy), names in bad.items():
        out.print(f"{check} on {' '.join(names)}: {remedy}")
    out.print(
        f"{len(verdict.good_nodes)} of {len(verdict.nodes)} nodes are good, "
        f"{verdict.needed} needed, after {verdict.seconds:.1f} s"
    )


def run(arguments: Arguments) -> ActionResult:
    """Print the findings of each node. The status is 1 if the recipe needs more good nodes."""
    with _folder(arguments) as (recipe, folder):
        if is_inside(recipe, os.environ):
            if arguments.run is not None:
                check_received_site(folder, recipe)
            verdict = look_at_allocation(recipe, folder, sys.executable)
        else:
            verdict = look_alone(recipe, folder)
    tree = {"holds": verdict.has_enough_nodes, **verdict.model_dump(mode="json")}
    print_result(arguments.output, tree, lambda: _print(verdict))
    return ActionResult(Status.DONE if verdict.has_enough_nodes else Status.DOES_NOT_HOLD)


@contextmanager
def _folder(arguments: Arguments) -> Iterator[tuple[Recipe, RunFolder]]:
    """Yield the recipe and the named run folder, or a temporary folder that all nodes see."""
    if arguments.run is not None:
        folder, recipe = open_run(arguments.run.absolute(), arguments.values)
        yield recipe, folder
        return
    recipe = compose_recipe(arguments)
    with TemporaryDirectory(dir=Path.cwd(), prefix=".preflight-") as place:
        folder = RunFolder(Path(place))
        folder.write_recipe(recipe)
        if data := find_prepared(recipe):
            noted = {"folder": str(data), "key": Manifest.from_folder(data).key}
            folder.write_json("data.json", noted)
        yield recipe, folder
