"""Run a pass over a corpus: its tasks, and the manifest of the files that they wrote."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from data_prep.stages import plan, record
from data_prep.stages.executors import Executor
from data_prep.stages.folder import Say, alone, full_disk_told, make_folder
from data_prep.stages.plan import InputPiece, PassPlan, PassTask


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A finished pass: its plan, its folder and its manifest."""

    plan: PassPlan
    folder: Path
    manifest: record.PassManifest

    def piece(self, task: int, output: int) -> InputPiece:
        """Take one file of one task as input of another pass."""
        file = self.manifest.outputs[task][output]
        return plan.whole(self.folder / file.name, file)

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
        version, _ = plan.PASSES[work]
        planned = PassPlan(work=work, version=version, settings=settings, tasks=tuple(tasks))
        folder, key = self.root / planned.folder_name, planned.key
        with full_disk_told(folder):
            make_folder(folder, exist_ok=True)
            manifest = record.read_manifest(folder, key)
            if manifest is not None:
                self.say(f"{folder.name}: done before")
                return Pass(plan=planned, folder=folder, manifest=manifest)
            with alone(folder, self.say):
                planned.write(folder)
                self._do_missing(folder, len(tasks), key)
                for left in folder.glob(".*.partial"):
                    left.unlink()
                manifest = record.write_manifest(folder, key, len(tasks))
                return Pass(plan=planned, folder=folder, manifest=manifest)

    def _do_missing(self, folder: Path, total: int, key: str) -> None:
        left = record.missing_tasks(folder, range(total), key)
        for task in left:
            record.take_failure(folder, task)
        if left:
            self.say(f"{folder.name}: {len(left)} of {total} tasks to do")
            self.executor.run(folder, left, self.say)
            left = record.missing_tasks(folder, left, key)
        for task in left:
            failure = record.take_failure(folder, task)
            if failure is not None:
                raise failure
        if left:
            logs = folder / "jobs"
            said = f"; what jobs said is in {logs}" if logs.exists() else ""
            problem = f"{len(left)} of {total} tasks ended without a result"
            remedy = f"give the same command again: it does these alone{said}"
            raise RecipeError(str(folder), f"{problem}, the first is {left[0]}", remedy)
