"""Hand what is due of a tree to the scheduler, once, though jobs end while they do so."""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster.array import ArrayWork, submit_array
from cluster.records import Jobs
from cluster.scheduler import NoAnswerError, SchedulerError
from cluster.user import read_user
from command.arguments import ROOT, read_point
from command.evaluate.queue import ask_in_jobs
from command.tree.nodes import DUE, TreeNode, nodes_of, state_of
from components.config.children import CHILDREN
from components.config.schema.recipe import read_recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.run.records import EnvironmentRecord
from components.terminal import say

_ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
PATIENCE_SECONDS = 30.0  # with another process of the tree; as long as a job's end with its own


def submit_due(root: Path) -> None:
    """Hand over what is due and was not; what cannot be is told, and tried again next time.

    Of a hand-over that was cut short nobody knows whether the scheduler took it: such a node is
    never handed over again by itself.
    """
    if Jobs(RunFolder(root)).chain().cancelled:
        return  # its user has taken the tree back
    with _alone(root) as mine:
        for node in nodes_of(root) if mine else ():
            if node.child.kind == "evaluate":
                due = node.is_due
            else:
                due = state_of(node) == DUE and node.is_due
            if not due:
                continue
            try:
                with _unended():
                    _submit(node)
            except (RecipeError, SchedulerError) as error:
                say(f"[{node.name}] not submitted: {error}")


def _submit(node: TreeNode) -> None:
    trunk = RunFolder(node.root)
    command = trunk.read("environment.json", EnvironmentRecord).command[2:]
    words = Jobs(trunk).chain().words or command  # of the last submission of the trunk
    site = [word for word in words if word.startswith("site.")]
    if node.child.kind == "evaluate":
        asked, recipe = read_point([*node.words, *site]), read_recipe(node.parent.recipe)
        ask_in_jobs(node.parent, recipe, node.missing, asked, node.name)  # an array at a time
        return
    if node.child.kind == "run":
        from command.actions.jobs.submit import check, hand_over  # takes its time

        recipe = read_recipe(RunFolder(node.path).recipe)
        ready = check(recipe, read_point([*node.words[1:], *site]), node.path)
        job = hand_over(ready, after=None)
    else:
        job = _submit_work(node, site)
    say(f"[{node.name}] submitted {job}")


def _submit_work(node: TreeNode, site: list[str]) -> str:
    """Submit a merge or an export as a job of one node."""
    recipe, trunk = read_recipe(node.parent.recipe), RunFolder(node.root)
    logs = node.root / CHILDREN / "jobs"
    logs.mkdir(exist_ok=True)
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
def _alone(root: Path) -> Iterator[bool]:
    """Say whether no other process of this tree submits; one that does is waited for.

    What it found may be older than what is due now, and this may be the last look.
    """
    (root / CHILDREN).mkdir(exist_ok=True)
    lock = os.open(root / CHILDREN / ".lock", os.O_CREAT | os.O_RDWR, 0o666)
    end = time.monotonic() + PATIENCE_SECONDS
    try:
        while not (mine := _locked(lock)) and time.monotonic() < end:
            time.sleep(0.2)
        yield mine
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


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
