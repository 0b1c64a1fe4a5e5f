"""The HTML page of a run tree, from the folder of its root run."""

from importlib.util import find_spec
from pathlib import Path

from command.run_tree.nodes import TreeNode, nodes_of, root_of, state_of
from components.config.check import read_recipe
from components.config.start import end_of
from components.report.measurements import read_evaluations
from components.report.tree import PlacedNode, place_node, write_tree
from components.run.folder import RunFolder
from components.terminal import log_line


def leave_tree_page(run: Path) -> None:
    """Write the tree's page if the run has children and plotly is installed."""
    if find_spec("plotly") is not None and (page := write_tree_page(run)) is not None:
        log_line(f"tree report: {page}")


def write_tree_page(run: Path) -> Path | None:
    """Write ``tree.html`` into the root run's folder; return None without children."""
    root = root_of(run)
    recipe = read_recipe(root / "recipe.json")
    if not recipe.children:
        return None
    state = RunFolder(root).end_status or "unfinished"
    root_node = PlacedNode(
        name=root.name,
        kind="run",
        of=None,
        begins=(0,),
        ends=end_of(recipe),
        added=0,
        state=state,
        folder=root,
    )
    placed_nodes: dict[str | None, PlacedNode] = {None: root_node}
    for node in nodes_of(root):
        placed_nodes[node.name] = _reported(node, placed_nodes)
    return write_tree(root_node, list(placed_nodes.values())[1:], root / "tree.html")


def _reported(node: TreeNode, above: dict[str | None, PlacedNode]) -> PlacedNode:
    child = node.child
    begin, added = place_node(child.of, child.at_tokens, above)
    begins: tuple[int, ...] = (begin,)
    if child.every_tokens is not None:
        answers = read_evaluations(node.parent_run.path)
        evaluated = {int(tree.get("tokens_trained") or 0) for tree in answers}
        begins = tuple(sorted(added + tokens for tokens in evaluated))
    ends = begin
    if child.node_kind == "run":
        added = added if child.takes == "optimizer" else begin
        ends = added + end_of(read_recipe(node.folder_path / "recipe.json"))
    return PlacedNode(
        name=node.name,
        kind=child.node_kind,
        of=child.of,
        begins=begins,
        ends=ends,
        added=added,
        state=state_of(node),
        folder=node.folder_path,
    )
