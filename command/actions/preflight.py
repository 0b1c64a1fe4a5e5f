"""Look at the nodes of this allocation, or at this machine, before ranks start on them."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.allocation import is_inside, look_at_allocation
from command.arguments import Arguments
from command.compose import compose_recipe
from command.outcome import Outcome, Status
from command.preflight_text import print_verdict
from command.run_places import check_data_place
from components.data.manifest import Manifest
from components.preflight.node import look_alone
from components.sharing.prepared import find_prepared
from components.spec.recipe import Recipe, read_recipe
from components.terminal import tell
from components.train.run_folder import RunFolder, existing_run_folder


def run(arguments: Arguments) -> Outcome:
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
    return Outcome(Status.DONE if verdict.holds else Status.DOES_NOT_HOLD)


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
