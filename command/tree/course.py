"""The course of a tree: what of it is due is done here, or handed to the scheduler.

``python -m command.tree.course RUN`` does so in the jobs of a run that has children: before
its ranks start, now and then while they run, and after them. Given again it changes nothing.

children/NAME        below the trunk: the folder of a run, a merge or an export, whatever of
children/NAME.json   the job of a merge or an export, written before it is handed over
"""

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.array import ArrayWork, submit_array
from cluster.records import Jobs
from cluster.scheduler import SchedulerError
from cluster.user import read_user
from command.arguments import ROOT, perform, read_point
from command.evaluate.queue import answers_of, array_folder, ask_in_jobs, read_array
from command.outcome import Status
from components.checkpoint.metadata import kept_tokens
from components.config.children import CHILDREN, ordered
from components.config.parent import PARENT
from components.config.schema.children import Child
from components.config.schema.recipe import Recipe, check_recipe, read_recipe
from components.errors import RecipeError
from components.run.folder import RunFolder, create_run_folder
from components.run.provenance import write_provenance
from components.run.records import EnvironmentRecord
from components.terminal import say

DONE, DUE, WAITING, QUEUED, UNSURE = "finished", "due", "waiting", "submitted", "unknown"
_ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
PATIENCE_SECONDS = 30.0  # with another process of the tree; as long as a job's end with its own


@dataclass(frozen=True)
class TreeNode:
    """A node in its trunk's folder."""

    root: Path
    name: str
    child: Child

    @property
    def path(self) -> Path:
        """Where its own folder is or will be."""
        return self.root / CHILDREN / self.name

    @property
    def parent(self) -> RunFolder:
        return RunFolder(
            self.root if self.child.of is None else self.root / CHILDREN / self.child.of
        )

    @property
    def note(self) -> Path:
        """The record of its job, where it is no run."""
        return self.path.with_suffix(".json")

    @property
    def words(self) -> list[str]:
        """The words of the command that does it, once its checkpoint is there."""
        if self.child.kind == "run":
            return ["action=train", f"resume={self.path}"]
        found = [f"action={self.child.kind}", f"run={self.parent.path}"]
        if self.child.at_tokens is not None:
            found.append(f"at_tokens={self.child.at_tokens}")
        if (merge := self.child.merge) is not None:
            found += [f"last={merge.last}", f"average={merge.average}"]
            found += [] if merge.ema_decay is None else [f"ema_decay={merge.ema_decay}"]
        if (asked := self.child.evaluate) is not None and asked.tasks:
            found.append(f"tasks=[{','.join(asked.tasks)}]")
        return found if self.child.kind == "evaluate" else [*found, f"file={self.path}"]

    @property
    def missing(self) -> list[int]:
        """Tokens of checkpoints that are there and still unanswered, of an evaluation."""
        answered = answers_of(self.parent, read_point(self.words))
        return [tokens for tokens in self._there() if tokens not in answered]

    def _there(self) -> list[int]:
        kept, every = kept_tokens(self.parent.checkpoints), self.child.every_tokens
        if every is None:
            return [tokens for tokens in kept if tokens == self.child.at_tokens]
        firsts: dict[int, int] = {}
        for tokens in kept:
            firsts.setdefault(tokens // every, tokens)
        return [tokens for multiple, tokens in firsts.items() if multiple]

    @property
    def is_done(self) -> bool:
        kind, folder = self.child.kind, RunFolder(self.path)
        if kind == "run":
            return folder.recipe.exists() and folder.ended == "finished"
        if kind == "merge":
            return folder.merge.exists()
        if kind == "export":
            return self.path.exists()
        whole = self.child.at_tokens is not None or self.parent.ended == "finished"
        return bool(whole and self._there() and not self.missing)

    @property
    def is_due(self) -> bool:
        """Whether its checkpoints are there; of an evaluation, whether one is unanswered."""
        there = self.parent.recipe.exists() and self._there()
        return bool(there and (self.child.kind != "evaluate" or self.missing))


def root_of(run: Path) -> Path:
    """Return the folder of the trunk that a run is below of, or its own."""
    above = run.absolute().parent
    if above.name == CHILDREN and (file := above.parent / "recipe.json").is_file():
        return above.parent if run.name in read_recipe(file).children else run.absolute()
    return run.absolute()


def nodes_of(root: Path) -> list[TreeNode]:
    """List the nodes of a trunk's folder, each after the one that it is of."""
    children = read_recipe(root / "recipe.json").children
    return [TreeNode(root, name, children[name]) for name in ordered(children)]


def plant(root: Path, runs: Mapping[str, Recipe], site: Mapping[str, Any]) -> None:
    """Make the folder of every run below a trunk, each with the place of its parent in it.

    Given again it makes what is missing.

    Raises:
        RecipeError: the data of a child cannot be made ready, or a folder cannot be made.
    """
    from command.actions.prepare import prepare_data  # imports numpy and tokenizers
    from command.parent_data import check_parent_data

    for node in nodes_of(root.absolute()) if runs else ():
        if node.child.kind != "run":
            continue
        folder = RunFolder(node.path)
        if not folder.recipe.exists():
            tree = runs[node.name].model_dump(mode="json")
            tree[PARENT]["run"] = str(node.parent.path)
            folder = create_run_folder(check_recipe(tree), node.path)
        if not (folder.path / "data.json").exists():
            recipe = read_recipe(folder.recipe)
            data = prepare_data(recipe, dict(site))
            if recipe.parent is not None and recipe.parent.goes_on:
                check_parent_data(recipe, data)
            write_provenance(folder, [f"resume={folder.path}"])
            folder.write_json("data.json", data)


def is_left(run: Path) -> bool:
    """Whether a run is a trunk that has finished, and some of its tree is not done."""
    folder = RunFolder(run)
    if not folder.recipe.exists() or folder.ended != "finished":
        return False
    root = run.absolute()
    return root_of(root) == root and not all(node.is_done for node in nodes_of(root))


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


def state_of(node: TreeNode) -> str:
    """Say in a word how a node is, by what is in the folders alone."""
    if node.is_done:
        return DONE
    if node.child.kind == "run" and Jobs(RunFolder(node.path)).record.exists():
        chain = Jobs(RunFolder(node.path)).chain()
        return QUEUED if chain.ids else UNSURE if chain.submissions else DUE
    if node.note.exists():
        return QUEUED if job_of(node) else UNSURE
    return DUE if node.is_due else WAITING


def _noted(node: TreeNode) -> str:
    return f"{CHILDREN}/{node.note.name}"


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
    site = [word for word in command if word.startswith("site.")]
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
    trunk.write_json(_noted(node), {"job": None})
    try:
        user = read_user(recipe.cluster.name, read_point(site).site)
        job = submit_array(recipe, user, array, repository=ROOT)
    except RecipeError:
        node.note.unlink()  # it was refused: nothing waits
        raise
    trunk.write_json(_noted(node), {"job": job})
    return job


def job_of(node: TreeNode) -> str | None:
    """Name the job of a node that is no run, if one was submitted."""
    if node.child.kind == "evaluate":
        array = read_array(array_folder(node.parent))
        return None if array is None else array.job
    job = (
        RunFolder(node.root).read_json(_noted(node)).get("job") if node.note.exists() else None
    )
    return None if job is None else str(job)


def logs_of(node: TreeNode) -> Path:
    """Return where the logs of such a job are."""
    if node.child.kind == "evaluate":
        return array_folder(node.parent) / "jobs"
    return node.root / CHILDREN / "jobs"


@contextmanager
def _alone(root: Path) -> Iterator[bool]:
    """Say whether no other process of this tree submits; one that does is waited for.

    What it found may be older than what is due now, and this may be the last look.
    """
    (root / CHILDREN).mkdir(exist_ok=True)
    lock = os.open(root / CHILDREN / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
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
        for one in told:
            signal.raise_signal(one)


def main(words: list[str]) -> int:
    """Submit what is due of the tree of a run; with a node's name, do that one here."""
    root = root_of(Path(words[0]))
    if len(words) == 1:
        submit_due(root)
        return 0
    named = next(node for node in nodes_of(root) if node.name == words[1])
    status = 0 if named.is_done else int(work(named))
    submit_due(root)  # what comes from it
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
