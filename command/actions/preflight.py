"""Look at the nodes of this allocation, or at this machine, before ranks start on them."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Table

from cluster.allocation import is_inside, look_at_allocation
from command.arguments import Arguments
from command.compose import compose_recipe
from command.outcome import ActionResult, Status
from command.path_checks import check_data_place
from components.config.schema.recipe import Recipe, read_recipe
from components.data.manifest import Manifest
from components.preflight.node import look_alone
from components.preflight.verdict import NodeVerdict, PreflightVerdict
from components.run.folder import RunFolder, existing_run_folder
from components.sharing.prepared import find_prepared
from components.terminal import console, tell

_WIDTH = 160  # of a table that is piped


def print_verdict(verdict: PreflightVerdict) -> None:
    """Print all findings, the ways out of the bad ones, and the sum."""
    out = console(width=_WIDTH)
    table = Table("node", "check", "found", "expected", "rule", "verdict", box=None)
    for node in verdict.nodes:
        for one in node.findings:
            table.add_row(node.node, one.check, one.found, one.expected, one.rule, one.verdict)
    out.print(table)
    for line in remedies(verdict.nodes):
        out.print(line)
    out.print(
        f"{len(verdict.good)} of {len(verdict.nodes)} nodes are good, {verdict.needed} needed, "
        f"after {verdict.seconds:.1f} s"
    )


def remedies(nodes: tuple[NodeVerdict, ...]) -> Iterator[str]:
    """Say the way out of each bad finding once, with the nodes that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        for one in node.bad:
            found.setdefault((one.check, one.remedy), []).append(node.node)
    for (check, remedy), names in found.items():
        yield f"{check} on {' '.join(names)}: {remedy}"


def run(arguments: Arguments) -> ActionResult:
    """Print what each node shows; status 1 if fewer are good than the recipe needs."""
    with _folder(arguments) as (recipe, folder):
        if is_inside(recipe, os.environ):
            verdict = look_at_allocation(recipe, folder, sys.executable)
        else:
            verdict = look_alone(recipe, folder)
    if arguments.output == "json":
        tree = {"holds": verdict.holds, **verdict.model_dump(mode="json")}
        tell(json.dumps(tree))
    else:
        print_verdict(verdict)
    return ActionResult(Status.DONE if verdict.holds else Status.DOES_NOT_HOLD)


@contextmanager
def _folder(arguments: Arguments) -> Iterator[tuple[Recipe, RunFolder]]:
    """Give the run that is named, or a folder for as long as it takes, which all nodes see."""
    if "run" in arguments.folders:
        folder = existing_run_folder(arguments.folders["run"].absolute())
        recipe = read_recipe(folder.recipe)
        check_data_place(folder, recipe, arguments.values)
        yield recipe, folder
        return
    recipe = compose_recipe(arguments)
    with TemporaryDirectory(dir=Path.cwd(), prefix=".preflight-") as place:
        folder = RunFolder(Path(place))
        folder.write_recipe(recipe)
        if (data := find_prepared(recipe)) is not None:
            noted = {"folder": str(data), "key": Manifest.read(data).key}
            folder.write_json("data.json", noted)
        yield recipe, folder
