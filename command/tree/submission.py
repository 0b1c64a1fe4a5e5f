"""Hand what is due of a tree to the scheduler, once, though jobs end while they do so."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.array import ArrayWork, submit_array
from cluster.chain_events import ReopenedEvent
from cluster.records import Jobs, now
from cluster.scheduler import NoAnswerError, SchedulerError
from cluster.user import read_user
from command.arguments import ROOT, Arguments, read_point
from command.evaluate.queue import ask_in_jobs
from command.jobs.submission import check_own, check_run, submit_run
from command.run_tree.nodes import DONE, DUE, TreeNode, logs_of, nodes_of, queued_jobs, state_of
from components.config.check import read_recipe
from components.config.children import CHILDREN
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.run.records import EnvironmentRecord
from components.run.writer_lock import submission_lock
from components.terminal import say

_ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
PATIENCE_SECONDS = 30.0  # with another process of the tree; as long as a job's end with its own


def submit_due(root: Path, *, reopened_by: Arguments | None = None) -> None:
    """Submit the nodes that are due. A node that cannot be submitted is tried again next time.

    Whether the scheduler took a submission that was cut short is not known: such a node, and a
    node whose job ended before it was done, are submitted again only if a person asks for it,
    by the command ``reopened_by``.

    Raises:
        RecipeError: another process submits or cancels nodes of this tree.
    """
    trunk = Jobs(RunFolder(root))
    with submission_lock(root / CHILDREN, seconds=PATIENCE_SECONDS):
        if reopened_by is not None:
            site = tuple(word for word in reopened_by.words if word.startswith("site."))
            trunk.note(ReopenedEvent(at=now(), words=site))
        for node in nodes_of(root):
            if trunk.chain().cancelled:  # also while this process submits
                return
            try:
                if _is_to_submit(node, again=reopened_by is not None):
                    with _unended():
                        _submit(node, again=reopened_by is not None)
            except (RecipeError, SchedulerError) as error:
                say(f"[{node.name}] not submitted: {error}")


def _is_to_submit(node: TreeNode, *, again: bool) -> bool:
    """Whether a node is due; ``again`` if it was submitted, is not done, and no job is left.

    The jobs of runs and evaluations are looked for where these are submitted.
    """
    if not node.is_due or node.child.kind == "evaluate":
        return node.is_due
    state = state_of(node)
    if state == DUE or not again:
        return state == DUE
    return state != DONE and (node.child.kind == "run" or not queued_jobs(node))


def _submit(node: TreeNode, *, again: bool) -> None:
    trunk = RunFolder(node.root)
    command = trunk.read("environment.json", EnvironmentRecord).command[2:]
    words = Jobs(trunk).chain().words or command  # of the last submission of the trunk
    site = [word for word in words if word.startswith("site.")]
    if node.child.kind == "evaluate":
        asked, recipe = read_point([*node.words, *site]), read_recipe(node.parent.recipe)
        ask_in_jobs(node.parent, recipe, node.missing, asked, node.name)  # an array at a time
        return
    if node.child.kind == "run":
        if again:
            check_own(node.path)
        recipe = read_recipe(RunFolder(node.path).recipe)
        site += ["again=true"] if again else []
        point = read_point([*node.words[1:], *site])
        checked = check_run(recipe, point, node.path)
        job = submit_run(checked, after=None)
    else:
        job = _submit_work(node, site)
    say(f"[{node.name}] submitted {job}")


def _submit_work(node: TreeNode, site: list[str]) -> str:
    """Submit a merge or an export as a job of one node."""
    recipe, trunk = read_recipe(node.parent.recipe), RunFolder(node.root)
    logs = logs_of(node)
    logs.mkdir(parents=True, exist_ok=True)
    array = ArrayWork(
        kind=node.name,
        module="command.tree.course",
        words=(str(node.root), node.name),
        logs=logs,
        elements=1,
    )
    note = f"{CHILDREN}/{node.note.name}"
    trunk.write_json(note, {"job": None})
    try:
        user = read_user(recipe.cluster.name, read_point(site).site)
        job = submit_array(recipe, user, array, repository=ROOT)
    except RecipeError as error:
        if not isinstance(error.__cause__, NoAnswerError):
            node.note.unlink()  # it was refused: nothing waits
        raise
    trunk.write_json(note, {"job": job})
    return job


@contextmanager
def _unended() -> Iterator[None]:
    """Put off what would end this process between a submission and its note.

    A program that is started meanwhile, sbatch, puts it off, too: a job at its wall, or one
    that is taken back, has seconds more.
    """
    told = list[int]()
    before = {one: signal.signal(one, lambda number, _: told.append(number)) for one in _ENDS}
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # of this thread, and of programs
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        for one, handler in before.items():
            signal.signal(one, handler)
        for number in told:
            signal.raise_signal(number)
