"""Passes of a preparation: each is a plan, its folder, and who brings it to its end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from data_prep.stages.cut import whole
from data_prep.stages.engine import run_pass
from data_prep.stages.executors import Executor
from data_prep.stages.plan import Piece, Plan, Task
from data_prep.stages.record import PassManifest


class Work(Protocol):
    """A module of this package that does one kind of task, in its function ``work``."""

    __name__: str
    VERSION: int


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A finished pass: its plan, its folder and its manifest."""

    plan: Plan
    folder: Path
    manifest: PassManifest

    def piece(self, task: int, output: int) -> Piece:
        """Take one file of one task as input of another pass."""
        record = self.manifest.outputs[task][output]
        return whole(self.folder / record.name, record)

    def pieces(self, source: str) -> Iterator[tuple[Piece, ...]]:
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

    def run(self, work: Work, settings: Mapping[str, Any], tasks: Sequence[Task]) -> Pass:
        """Bring a pass to its end, or find it there; see :func:`run_pass`."""
        name = work.__name__.rpartition(".")[2]
        plan = Plan(work=name, version=work.VERSION, settings=settings, tasks=tuple(tasks))
        manifest = run_pass(plan, self.root, self.executor, self.say)
        return Pass(plan=plan, folder=self.root / plan.folder_name, manifest=manifest)
