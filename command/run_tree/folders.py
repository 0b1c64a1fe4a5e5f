"""Create the run folders of a tree."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.records import Jobs
from command.prepared_data import prepare_data
from command.run_tree.nodes import nodes_of
from command.start_data import check_start_data
from components.config.check import check_recipe, read_recipe
from components.config.recipe import Recipe
from components.config.resolve import check_continues
from components.config.start import START
from components.run.folder import RunFolder, create_run_folder
from components.run.provenance import write_provenance


def create_child_folders(
    root: Path, runs: Mapping[str, Recipe], site: Mapping[str, Any]
) -> None:
    """Create the folder of every run below ``root``; its recipe names the folder of its parent.

    A repeated call creates what is missing, and renews the recipes of runs that did not start.

    Raises:
        RecipeError: the data of a child cannot be prepared, or a folder cannot be created.
    """
    for node in nodes_of(root.absolute()) if runs else ():
        if node.child.kind != "run":
            continue
        folder, tree = RunFolder(node.path), runs[node.name].model_dump(mode="json")
        tree[START]["run"] = str(node.parent.path)
        recipe = check_recipe(tree)
        if not folder.recipe.exists():
            create_run_folder(recipe, node.path)
        elif not Jobs(folder).record.exists():  # a run that was submitted keeps its recipe
            check_continues(read_recipe(folder.recipe), recipe, folder.path)
            folder.write_recipe(recipe)
        if not (folder.path / "data.json").exists():
            data = prepare_data(recipe, dict(site))
            if recipe.start is not None and recipe.start.goes_on:
                check_start_data(recipe, data)
            write_provenance(folder, [f"resume={folder.path}"])
            folder.write_json("data.json", data)
