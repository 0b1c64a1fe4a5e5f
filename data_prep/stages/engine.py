"""Bring passes of a preparation to their end: do what is missing, then write the manifest."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from components.errors import RecipeError
from data_prep.stages.cut import whole
from data_prep.stages.executors import Executor
from data_prep.stages.lock import alone, full_disk_told
from data_prep.stages.plan import InputPiece, PassPlan, PassTask
from data_prep.stages.record import (
    PassManifest,
    missing_tasks,
    read_manifest,
    take_failure,
    write_manifest,
)


def run_pass(
    plan: PassPlan, root: Path, executor: Executor, say: Callable[[str], None]
) -> PassManifest:
    """Do the tasks of ``plan`` that are not done yet, in its folder below ``root``.

    Raises:
        RecipeError: bad input, a full disk, somebody else at work there, or tasks that ended
            without a record.
    """
    folder = root / plan.folder_name
    with full_disk_told(folder):
        _make(folder)
        manifest = read_manifest(folder, plan.key)
        if manifest is not None:
            say(f"{folder.name}: done before")
            return manifest
        with alone(folder, say):
            plan.write(folder)
            _do_missing(folder, plan, executor, say)
            for left in folder.glob(".*.partial"):
                left.unlink()
            return write_manifest(folder, plan.key, len(plan.tasks))


def _do_missing(
    folder: Path, plan: PassPlan, executor: Executor, say: Callable[[str], None]
) -> None:
    everything = range(len(plan.tasks))
    left = missing_tasks(folder, everything, plan.key)
    for task in left:
        take_failure(folder, task)
    if left:
        say(f"{folder.name}: {len(left)} of {len(plan.tasks)} tasks to do")
        executor.run(folder, left, say)
        left = missing_tasks(folder, left, plan.key)
    for task in left:
        failure = take_failure(folder, task)
        if failure is not None:
            raise failure
    if left:
        raise RecipeError(
            str(folder),
            f"{len(left)} of {len(plan.tasks)} tasks ended without a result, the first is "
            f"{left[0]}",
            "give the same command again: it does these alone"
            + (f"; what jobs said is in {folder}/jobs" if (folder / "jobs").exists() else ""),
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise RecipeError(
            "data.folder", f"cannot write there: {error}", "name a folder that you may write to"
        ) from error


class TaskModule(Protocol):
    """A module of this package that does one kind of task, in its function ``work``."""

    __name__: str
    VERSION: int


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A finished pass: its plan, its folder and its manifest."""

    plan: PassPlan
    folder: Path
    manifest: PassManifest

    def piece(self, task: int, output: int) -> InputPiece:
        """Take one file of one task as input of another pass."""
        record = self.manifest.outputs[task][output]
        return whole(self.folder / record.name, record)

    def pieces(self, source: str) -> Iterator[tuple[InputPiece, ...]]:
        """Take all files of each task of a source."""
        for number, task in enumerate(self.plan.tasks):
            if task.source == source:
                outputs = range(len(self.manifest.outputs[number]))
                yield tuple(self.piece(number, output) for output in outputs)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Where passes have their folders, who does their tasks, and who is told."""

    root: Path
    executor: Executor
    say: Callable[[str], None]

    def run(
        self, work: TaskModule, settings: Mapping[str, Any], tasks: Sequence[PassTask]
    ) -> Pass:
        """Bring a pass to its end, or find it there; see :func:`run_pass`."""
        name = work.__name__.rpartition(".")[2]
        plan = PassPlan(work=name, version=work.VERSION, settings=settings, tasks=tuple(tasks))
        manifest = run_pass(plan, self.root, self.executor, self.say)
        return Pass(plan=plan, folder=self.root / plan.folder_name, manifest=manifest)
