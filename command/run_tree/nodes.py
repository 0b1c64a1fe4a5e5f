"""Nodes of a tree by its folders: where each is, what it waits for, how it stands.

children/NAME        below the trunk: the folder of a run, a merge or an export, whatever of
children/NAME.json   the job of a merge or an export, written before it is handed over
children/jobs/NAME   the logs of that job
children/submit.lock held while a process submits or cancels nodes of the tree
"""

from dataclasses import dataclass
from pathlib import Path

from cluster.clients import scheduler_for
from cluster.records import Jobs
from cluster.scheduler import JobState, check_id
from command.arguments import Arguments, read_point
from command.evaluate.queue import answers_of, array_folder, read_array
from components.checkpoint.metadata import kept_tokens
from components.config.check import read_recipe
from components.config.children import CHILDREN, ordered
from components.config.schema.children import Child
from components.errors import RecipeError
from components.run.folder import RunFolder, existing_run_folder

DONE, DUE, WAITING, QUEUED, UNSURE = "finished", "due", "waiting", "submitted", "unknown"


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


def continues_tree(arguments: Arguments) -> bool:
    """Whether ``resume=`` names a trunk that has finished before all of its tree was done.

    Raises:
        RecipeError: keys are given, which such a trunk has no use for.
    """
    run = arguments.resume
    if run is None or arguments.at_tokens is not None:
        return False
    if not is_left(existing_run_folder(run, "resume").path):
        return False
    for key in arguments.values:
        problem = f"{run} has finished, and its children go on"
        raise RecipeError(key, problem, f"resume={run}/children/NAME with it")
    return True


def is_left(run: Path) -> bool:
    """Whether a run is a trunk that has finished, and some of its tree is not done."""
    folder = RunFolder(run)
    if not folder.recipe.exists() or folder.ended != "finished":
        return False
    root = run.absolute()
    return root_of(root) == root and not all(node.is_done for node in nodes_of(root))


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


def job_of(node: TreeNode) -> str | None:
    """Name the job of a node that is no run, if one was submitted."""
    if node.child.kind == "evaluate":
        array = read_array(array_folder(node.parent))
        return None if array is None else array.job
    if not node.note.exists():
        return None
    job = RunFolder(node.root).read_json(f"{CHILDREN}/{node.note.name}").get("job")
    return None if job is None else str(job)


def logs_of(node: TreeNode) -> Path:
    """Return where the logs of such a job are."""
    if node.child.kind == "evaluate":
        return array_folder(node.parent) / "jobs"
    return node.root / CHILDREN / "jobs" / node.name


def queued_jobs(node: TreeNode) -> list[JobState]:
    """List what the queue has of a merge, an export or an evaluation.

    Raises:
        RecipeError: what is recorded as its job is no id of one.
        SchedulerError: the scheduler does not answer, or the job is somebody else's.
    """
    scheduler, job = scheduler_for(read_recipe(node.root / "recipe.json").cluster), job_of(node)
    if job is not None:
        check_id(scheduler, job, logs_of(node))
    return scheduler.states(job or "", logs_of(node)) if logs_of(node).is_dir() else []
