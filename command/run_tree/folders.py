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
    """Create the folder of every run below ``root``, with the parent's folder in its recipe.

    A repeated call creates missing folders, and updates the recipes of runs that were not
    submitted.
    """
    for node in nodes_of(root.absolute()) if runs else ():
        if node.child.node_kind != "run":
            continue
        folder, tree = RunFolder(node.folder_path), runs[node.name].model_dump(mode="json")
        tree[START]["run"] = str(node.parent_run.path)
        recipe = check_recipe(tree)
        if not folder.recipe.exists():
            create_run_folder(recipe, node.folder_path)
        elif not Jobs(folder).record.exists():  # a submitted run keeps its recipe
            check_continues(read_recipe(folder.recipe), recipe, folder.path)
            folder.write_recipe(recipe)
        if not (folder.path / "data.json").exists():
            data = prepare_data(recipe, dict(site))
            if recipe.start is not None and recipe.start.goes_on:
                check_start_data(recipe, data)
            write_provenance(folder, [f"resume={folder.path}"])
            folder.write_json("data.json", data)
