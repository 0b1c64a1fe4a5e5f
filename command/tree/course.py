"""Execute the due nodes of a tree here, or submit them to the scheduler.

``python -m command.tree.course RUN`` runs in the jobs of a run that has children: before its
ranks start, periodically while they run, and after them. Repeating it changes nothing.
"""

import shutil
import sys
from pathlib import Path

from command.arguments import read_point
from command.outcome import Status
from command.perform import run_action
from command.run_tree.nodes import TreeNode, nodes_of, root_of
from command.tree.submission import submit_due
from components.errors import RecipeError
from components.terminal import log_line


def run_due_nodes(root: Path) -> Status:
    """Execute due nodes on this machine, one after the other, until none is due.

    After a failed node the others are still executed, and the failed node's status is returned.
    """
    statuses, failed = [Status.DONE], set[str]()
    while True:
        open_nodes = (node for node in nodes_of(root) if node.name not in failed)
        due = next((node for node in open_nodes if not node.is_done and node.is_due), None)
        if due is None:
            return max(statuses)
        tokens = due.child.at_tokens or "several"
        log_line(f"[{due.name}] {due.child.node_kind} after {tokens} tokens")
        statuses.append(run_node(due))
        if statuses[-1] is not Status.DONE:
            failed.add(due.name)
        if statuses[-1] in {Status.STOPPED, Status.INTERRUPTED}:
            return statuses[-1]


def run_node(node: TreeNode) -> Status:
    """Execute a node here."""
    if node.child.node_kind == "merge" and node.folder_path.exists():
        shutil.rmtree(node.folder_path)  # left by an interrupted merge
    words = [node.command_words]
    if node.child.every_tokens is not None:
        words = [[*node.command_words, f"at_tokens={tokens}"] for tokens in node.missing_tokens]
    statuses = [Status.DONE]
    for point in map(read_point, words):
        try:
            statuses.append(run_action(point.action, point).status)
        except RecipeError as error:
            log_line(f"[{node.name}] {error}")
            statuses.append(Status.DOES_NOT_HOLD)
    return max(statuses)


def main(words: list[str]) -> int:
    """Submit the due nodes of a run's tree, after executing the named node here."""
    root = root_of(Path(words[0]))
    named = [node for node in nodes_of(root) if node.name in words[1:]]
    status = max((int(run_node(node)) for node in named if not node.is_done), default=0)
    try:
        submit_due(root)
    except RecipeError as error:
        log_line(str(error))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
