"""Submit the due nodes of a tree once, although the jobs that submit them may be ended."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.array import ArrayWork, submit_array
from cluster.chain import ReopenedEvent
from cluster.records import Jobs, utc_now
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
from components.terminal import log_line

_ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
PATIENCE_SECONDS = 30.0  # for another process of the tree; as long as a job's own end waits


def submit_due(root: Path, *, reopened_by: Arguments | None = None) -> None:
    """Submit the due nodes. A node that cannot be submitted is retried next time.

    If a submission was interrupted, the scheduler may have accepted it. Such a node, and a node
    whose job ended before the node was done, are submitted again only if a person runs the
    command ``reopened_by``. Only one process may submit at a time.
    """
    root_jobs = Jobs(RunFolder(root))
    with submission_lock(root / CHILDREN, seconds=PATIENCE_SECONDS):
        if reopened_by is not None:
            site = tuple(word for word in reopened_by.words if word.startswith("site."))
            root_jobs.append_events(ReopenedEvent(at=utc_now(), words=site))
        for node in nodes_of(root):
            if root_jobs.load_chain().cancelled:  # may become true while this process submits
                return
            try:
                if _is_to_submit(node, again=reopened_by is not None):
                    with _unended():
                        _submit(node, again=reopened_by is not None)
            except (RecipeError, SchedulerError) as error:
                log_line(f"[{node.name}] not submitted: {error}")


def _is_to_submit(node: TreeNode, *, again: bool) -> bool:
    """Return whether a node is due, or with ``again`` unfinished and without a job.

    For runs and evaluations, the submission itself looks for jobs.
    """
    if not node.is_due or node.child.node_kind == "evaluate":
        return node.is_due
    state = state_of(node)
    if state == DUE or not again:
        return state == DUE
    return state != DONE and (node.child.node_kind == "run" or not queued_jobs(node))


def _submit(node: TreeNode, *, again: bool) -> None:
    root_run = RunFolder(node.root)
    command = root_run.read_file("environment.json", EnvironmentRecord).command[2:]
    words = Jobs(root_run).load_chain().words or command  # of the root run's last submission
    site = [word for word in words if word.startswith("site.")]
    if node.child.node_kind == "evaluate":
        arguments = read_point([*node.command_words, *site])
        run = node.parent_run
        ask_in_jobs(run, read_recipe(run.recipe), node.missing_tokens, arguments, node.name)
        return
    if node.child.node_kind == "run":
        if again:
            check_own(node.folder_path)
        recipe = read_recipe(RunFolder(node.folder_path).recipe)
        site += ["again=true"] if again else []
        point = read_point([*node.command_words[1:], *site])
        checked = check_run(recipe, point, node.folder_path)
        job = submit_run(checked, after=None)
    else:
        job = _submit_work(node, site)
    log_line(f"[{node.name}] submitted {job}")


def _submit_work(node: TreeNode, site: list[str]) -> str:
    """Submit a merge or an export as a job of one node."""
    recipe, root_run = read_recipe(node.parent_run.recipe), RunFolder(node.root)
    logs = logs_of(node)
    logs.mkdir(parents=True, exist_ok=True)
    array = ArrayWork(
        kind=node.name,
        module="command.tree.course",
        words=(str(node.root), node.name),
        logs=logs,
        elements=1,
    )
    note = f"{CHILDREN}/{node.job_file.name}"
    root_run.write_json(note, {"job": None})
    try:
        user = read_user(recipe.cluster.name, read_point(site).site)
        job = submit_array(recipe, user, array, repository=ROOT)
    except RecipeError as error:
        if not isinstance(error.__cause__, NoAnswerError):
            node.job_file.unlink()  # refused: no job is queued
        raise
    root_run.write_json(note, {"job": job})
    return job


@contextmanager
def _unended() -> Iterator[None]:
    """Delay signals that would end this process between a submission and its record.

    A program that is started meanwhile, such as sbatch, delays them too: a job that reaches its
    time limit or is cancelled has some seconds left.
    """
    pending = list[int]()
    before = {
        end_signal: signal.signal(end_signal, lambda number, _: pending.append(number))
        for end_signal in _ENDS
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # of this thread, and of programs
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        for end_signal, handler in before.items():
            signal.signal(end_signal, handler)
        for number in pending:
            signal.raise_signal(number)
