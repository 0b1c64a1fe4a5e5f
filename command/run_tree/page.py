"""The page of a tree, from the folder of its trunk."""

from importlib.util import find_spec
from pathlib import Path

from command.run_tree.nodes import TreeNode, nodes_of, root_of, state_of
from components.config.check import read_recipe
from components.config.start import end_of
from components.report.measurements import read_evaluations
from components.report.tree import PlacedNode, placed, write_tree
from components.run.folder import RunFolder
from components.terminal import say


def leave_tree_page(run: Path) -> None:
    """Write the page of a tree that was done here, if plotly, which draws it, is here."""
    if find_spec("plotly") is not None and (page := write_tree_page(run)) is not None:
        say(f"the whole tree: {page}")


def write_tree_page(run: Path) -> Path | None:
    """Write ``tree.html`` into the trunk's folder; a run without children has none.

    Raises:
        RecipeError: a folder of the tree cannot be read.
    """
    root = root_of(run)
    recipe = read_recipe(root / "recipe.json")
    if not recipe.children:
        return None
    state = RunFolder(root).ended or "unfinished"
    trunk = PlacedNode(
        name=root.name,
        kind="run",
        of=None,
        begins=(0,),
        ends=end_of(recipe),
        added=0,
        state=state,
        folder=root,
    )
    found: dict[str | None, PlacedNode] = {None: trunk}
    for node in nodes_of(root):
        found[node.name] = _reported(node, found)
    return write_tree(trunk, list(found.values())[1:], root / "tree.html")


def _reported(node: TreeNode, above: dict[str | None, PlacedNode]) -> PlacedNode:
    child = node.child
    begin, added = placed(child.of, child.at_tokens, above)
    begins: tuple[int, ...] = (begin,)
    if child.every_tokens is not None:
        answers = read_evaluations(node.parent.path)
        asked = {int(tree.get("tokens_trained") or 0) for tree in answers}
        begins = tuple(sorted(added + tokens for tokens in asked))
    ends = begin
    if child.kind == "run":
        added = added if child.takes == "optimizer" else begin
        ends = added + end_of(read_recipe(node.path / "recipe.json"))
    return PlacedNode(
        name=node.name,
        kind=child.kind,
        of=child.of,
        begins=begins,
        ends=ends,
        added=added,
        state=state_of(node),
        folder=node.path,
    )
