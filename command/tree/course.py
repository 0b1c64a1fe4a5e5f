"""The course of a tree: what of it is due is done here, or handed to the scheduler.

``python -m command.tree.course RUN`` does so in the jobs of a run that has children: before
its ranks start, now and then while they run, and after them. Given again it changes nothing.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.records import Jobs
from command.arguments import perform, read_point
from command.outcome import Status
from command.tree.nodes import TreeNode, nodes_of, root_of
from command.tree.submission import submit_due
from components.config.parent import PARENT
from components.config.resolve import check_continues
from components.config.schema.recipe import Recipe, check_recipe, read_recipe
from components.errors import RecipeError
from components.run.folder import RunFolder, create_run_folder
from components.run.provenance import write_provenance
from components.terminal import say


def plant(root: Path, runs: Mapping[str, Recipe], site: Mapping[str, Any]) -> None:
    """Make the folder of every run below a trunk, each with the place of its parent in it.

    Given again it makes what is missing, and renews the recipes of runs that did not begin.

    Raises:
        RecipeError: the data of a child cannot be made ready, or a folder cannot be made.
    """
    from command.actions.prepare import prepare_data  # imports numpy and tokenizers
    from command.parent_data import check_parent_data

    for node in nodes_of(root.absolute()) if runs else ():
        if node.child.kind != "run":
            continue
        folder, tree = RunFolder(node.path), runs[node.name].model_dump(mode="json")
        tree[PARENT]["run"] = str(node.parent.path)
        recipe = check_recipe(tree)
        if not folder.recipe.exists():
            create_run_folder(recipe, node.path)
        elif not Jobs(folder).record.exists():  # a run that was submitted keeps its recipe
            check_continues(read_recipe(folder.recipe), recipe, folder.path)
            folder.write_recipe(recipe)
        if not (folder.path / "data.json").exists():
            data = prepare_data(recipe, dict(site))
            if recipe.parent is not None and recipe.parent.goes_on:
                check_parent_data(recipe, data)
            write_provenance(folder, [f"resume={folder.path}"])
            folder.write_json("data.json", data)


def grow_here(root: Path) -> Status:
    """Do what is due on this machine, one node after the other, until nothing is.

    A node that fails leaves the others: they are done first, and its status is returned.
    """
    statuses, failed = [Status.DONE], set[str]()
    while True:
        open_nodes = (one for one in nodes_of(root) if one.name not in failed)
        due = next((one for one in open_nodes if not one.is_done and one.is_due), None)
        if due is None:
            return max(statuses)
        say(f"[{due.name}] {due.child.kind} after {due.child.at_tokens or 'several'} tokens")
        statuses.append(work(due))
        if statuses[-1] is not Status.DONE:
            failed.add(due.name)
        if statuses[-1] in {Status.STOPPED, Status.INTERRUPTED}:
            return statuses[-1]


def work(node: TreeNode) -> Status:
    """Do a node here."""
    if node.child.kind == "merge" and node.path.exists():
        shutil.rmtree(node.path)  # of one that was interrupted
    words = [node.words]
    if node.child.every_tokens is not None:
        words = [[*node.words, f"at_tokens={tokens}"] for tokens in node.missing]
    statuses = [Status.DONE]
    for point in map(read_point, words):
        try:
            statuses.append(perform(point.action, point).status)
        except RecipeError as error:
            say(f"[{node.name}] {error}")
            statuses.append(Status.DOES_NOT_HOLD)
    return max(statuses)


def main(words: list[str]) -> int:
    """Submit what is due of the tree of a run; with a node's name, do that one here."""
    root = root_of(Path(words[0]))
    named = [node for node in nodes_of(root) if node.name in words[1:]]
    status = max((int(work(node)) for node in named if not node.is_done), default=0)
    try:
        submit_due(root)
    except RecipeError as error:
        say(str(error))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
