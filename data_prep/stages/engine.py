"""Bring passes of a preparation to their end: do what is missing, then write the manifest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from data_prep.stages.executors import Executor, Say, alone, full_disk_told
from data_prep.stages.plan import PASSES, InputPiece, PassPlan, PassTask, whole
from data_prep.stages.record import (
    PassManifest,
    missing_tasks,
    read_manifest,
    take_failure,
    write_manifest,
)


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
    say: Say

    def run(self, work: str, settings: Mapping[str, Any], tasks: Sequence[PassTask]) -> Pass:
        """Do the tasks of a pass that are not done yet, in its folder below ``root``.

        Raises:
            RecipeError: bad input, a full disk, somebody else at work there, or tasks that
                ended without a record.
        """
        version, _ = PASSES[work]
        plan = PassPlan(work=work, version=version, settings=settings, tasks=tuple(tasks))
        folder = self.root / plan.folder_name
        with full_disk_told(folder):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError, PermissionError) as error:
                problem = f"cannot write there: {error}"
                remedy = "name a folder that you may write to"
                raise RecipeError("data.folder", problem, remedy) from error
            manifest = read_manifest(folder, plan.key)
            if manifest is None:
                manifest = self._finish(folder, plan)
            else:
                self.say(f"{folder.name}: done before")
        return Pass(plan=plan, folder=folder, manifest=manifest)

    def _finish(self, folder: Path, plan: PassPlan) -> PassManifest:
        with alone(folder, self.say):
            plan.write(folder)
            self._do_missing(folder, plan)
            for left in folder.glob(".*.partial"):
                left.unlink()
            return write_manifest(folder, plan.key, len(plan.tasks))

    def _do_missing(self, folder: Path, plan: PassPlan) -> None:
        total = len(plan.tasks)
        left = missing_tasks(folder, range(total), plan.key)
        for task in left:
            take_failure(folder, task)
        if left:
            self.say(f"{folder.name}: {len(left)} of {total} tasks to do")
            self.executor.run(folder, left, self.say)
            left = missing_tasks(folder, left, plan.key)
        for task in left:
            failure = take_failure(folder, task)
            if failure is not None:
                raise failure
        if left:
            logs = folder / "jobs"
            raise RecipeError(
                str(folder),
                f"{len(left)} of {total} tasks ended without a result, the first is {left[0]}",
                "give the same command again: it does these alone"
                + (f"; what jobs said is in {logs}" if logs.exists() else ""),
            )
