"""The course of a tree: what of it is due is done here, or handed to the scheduler.

``python -m command.tree.course RUN`` does so in the jobs of a run that has children: before
its ranks start, now and then while they run, and after them. Given again it changes nothing.
"""

import shutil
import sys
from pathlib import Path

from command.arguments import read_point
from command.outcome import Status
from command.perform import perform
from command.run_tree.nodes import TreeNode, nodes_of, root_of
from command.tree.submission import submit_due
from components.errors import RecipeError
from components.terminal import say


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
