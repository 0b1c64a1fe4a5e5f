"""Nodes of a run tree and their state, read from the root run's folders.

children/NAME        folder of a run, merge or export, also of a nested node
children/NAME.json   job record of a merge or an export, written before submission
children/jobs/NAME   logs of that job
children/submit.lock held while a process submits or cancels nodes of the tree
"""

from dataclasses import dataclass
from pathlib import Path

from cluster.clients import scheduler_for
from cluster.records import Jobs
from cluster.scheduler import JobState, check_id
from command.arguments import Arguments, read_point
from command.evaluate.queue import answers_of, array_folder, read_array
from components.checkpoint.metadata import list_saved_tokens
from components.config.check import read_recipe
from components.config.children import CHILDREN, sort_by_parent
from components.config.schema.children import Child
from components.errors import RecipeError
from components.run.folder import RunFolder, existing_run_folder

DONE, DUE, WAITING, QUEUED, UNSURE = "finished", "due", "waiting", "submitted", "unknown"


@dataclass(frozen=True)
class TreeNode:
    """A node in its root run's folder."""

    root: Path
    name: str
    child: Child

    @property
    def folder_path(self) -> Path:
        """The path of the node's folder, which may not exist yet."""
        return self.root / CHILDREN / self.name

    @property
    def parent_run(self) -> RunFolder:
        return RunFolder(
            self.root if self.child.of is None else self.root / CHILDREN / self.child.of
        )

    @property
    def job_file(self) -> Path:
        """The job record of a merge or an export."""
        return self.folder_path.with_suffix(".json")

    @property
    def command_words(self) -> list[str]:
        """The words of the command that executes the node."""
        if self.child.node_kind == "run":
            return ["action=train", f"resume={self.folder_path}"]
        words = [f"action={self.child.node_kind}", f"run={self.parent_run.path}"]
        if self.child.at_tokens is not None:
            words.append(f"at_tokens={self.child.at_tokens}")
        if (merge := self.child.merge) is not None:
            words += [f"last={merge.last}", f"average={merge.average}"]
            words += [] if merge.ema_decay is None else [f"ema_decay={merge.ema_decay}"]
        if (evaluation := self.child.evaluate) is not None and evaluation.tasks:
            words.append(f"tasks=[{','.join(evaluation.tasks)}]")
        if self.child.node_kind != "evaluate":
            words.append(f"file={self.folder_path}")
        return words

    @property
    def missing_tokens(self) -> list[int]:
        """For an evaluation, the tokens of existing checkpoints without results."""
        answered = answers_of(self.parent_run, read_point(self.command_words))
        return [tokens for tokens in self._there() if tokens not in answered]

    def _there(self) -> list[int]:
        checkpoints = list_saved_tokens(self.parent_run.checkpoints)
        if (every := self.child.every_tokens) is None:
            return [tokens for tokens in checkpoints if tokens == self.child.at_tokens]
        firsts: dict[int, int] = {}
        for tokens in checkpoints:
            firsts.setdefault(tokens // every, tokens)
        return [tokens for multiple, tokens in firsts.items() if multiple]

    @property
    def is_done(self) -> bool:
        kind, folder = self.child.node_kind, RunFolder(self.folder_path)
        if kind == "run":
            return folder.recipe.exists() and folder.end_status == "finished"
        if kind == "merge":
            return folder.merge.exists()
        if kind == "export":
            return self.folder_path.exists()
        whole = self.child.at_tokens is not None or self.parent_run.end_status == "finished"
        return bool(whole and self._there() and not self.missing_tokens)

    @property
    def is_due(self) -> bool:
        """Whether the node's checkpoints exist and, for an evaluation, one lacks results."""
        there = self.parent_run.recipe.exists() and self._there()
        return bool(there and (self.child.node_kind != "evaluate" or self.missing_tokens))


def root_of(run: Path) -> Path:
    """Return the folder of the root run above a run, or the run's own folder."""
    above = run.absolute().parent
    if above.name == CHILDREN and (file := above.parent / "recipe.json").is_file():
        return above.parent if run.name in read_recipe(file).children else run.absolute()
    return run.absolute()


def nodes_of(root: Path) -> list[TreeNode]:
    """List the nodes of a root run's folder, each after its parent."""
    children = read_recipe(root / "recipe.json").children
    return [TreeNode(root, name, children[name]) for name in sort_by_parent(children)]


def continues_tree(arguments: Arguments) -> bool:
    """Return whether ``resume=`` names a finished root run with an unfinished tree.

    Keys have no effect on such a root run, so they are a RecipeError.
    """
    run = arguments.resume
    if run is None or arguments.at_tokens is not None:
        return False
    if not is_left(existing_run_folder(run, "resume").path):
        return False
    for key in arguments.values:
        problem = f"{run} has finished; only its children continue"
        raise RecipeError(key, problem, f"set {key} with resume={run}/children/NAME")
    return True


def is_left(run: Path) -> bool:
    """Return whether a run is a finished root run with unfinished nodes."""
    folder = RunFolder(run)
    if not folder.recipe.exists() or folder.end_status != "finished":
        return False
    root = run.absolute()
    return root_of(root) == root and not all(node.is_done for node in nodes_of(root))


def state_of(node: TreeNode) -> str:
    """Return the state of a node as a word, read from its folders only."""
    if node.is_done:
        return DONE
    if node.child.node_kind == "run" and Jobs(RunFolder(node.folder_path)).record.exists():
        chain = Jobs(RunFolder(node.folder_path)).load_chain()
        return QUEUED if chain.job_ids else UNSURE if chain.submissions else DUE
    if node.job_file.exists():
        return QUEUED if job_of(node) else UNSURE
    return DUE if node.is_due else WAITING


def job_of(node: TreeNode) -> str | None:
    """Return the job id of a node that is not a run, if one was submitted."""
    if node.child.node_kind == "evaluate":
        array = read_array(array_folder(node.parent_run))
        return None if array is None else array.job
    if not node.job_file.exists():
        return None
    job = RunFolder(node.root).read_json(f"{CHILDREN}/{node.job_file.name}").get("job")
    return None if job is None else str(job)


def logs_of(node: TreeNode) -> Path:
    """Return the log folder of a node that is not a run."""
    if node.child.node_kind == "evaluate":
        return array_folder(node.parent_run) / "jobs"
    return node.root / CHILDREN / "jobs" / node.name


def queued_jobs(node: TreeNode) -> list[JobState]:
    """List the queued jobs of a merge, an export or an evaluation.

    Raises:
        RecipeError: the recorded job id is malformed.
        SchedulerError: the scheduler does not answer, or the job belongs to another user.
    """
    scheduler, job = scheduler_for(read_recipe(node.root / "recipe.json").cluster), job_of(node)
    if job is not None:
        check_id(scheduler, job, logs_of(node))
    return scheduler.list_jobs(job or "", logs_of(node)) if logs_of(node).is_dir() else []
