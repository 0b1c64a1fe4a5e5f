"""From a recipe's sources to their clean text, pass by pass.

Each pass has a folder ``<root>/<pass>-<key>`` whose key hashes the pass's settings, its inputs
and the version of its code: a changed setting rebuilds its pass and what follows, no more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.data.manifest import StageCounts, StageRecord
from components.errors import RecipeError
from components.spec.corpus import Preparation
from components.spec.sections import Source
from data_prep.sources import OpenSource, open_source
from data_prep.stages import clean, duplicates, keep, signatures
from data_prep.stages.cut import cut_source, whole
from data_prep.stages.engine import run_pass
from data_prep.stages.executors import Executor
from data_prep.stages.plan import Piece, Plan, Task
from data_prep.stages.record import PassManifest
from data_prep.stages.shards import CleanShard

PLACES = {"files", "embedded", "stand_in"}  # where a text lies does not decide what it becomes
NONE = "none"


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


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """The sources' clean text, and the record of every pass that made it."""

    sources: Mapping[str, OpenSource]
    stages: Mapping[str, StageRecord]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """All that a preparation needs to know; ``root`` is the folder of the passes."""

    sources: Mapping[str, Source]
    preparation: Preparation
    root: Path
    executor: Executor
    say: Callable[[str], None]

    def clean(self) -> Cleaned:
        """Bring every pass to its end, or find it there.

        Raises:
            RecipeError: bad input, nothing left of a source, or see :func:`run_pass`.
        """
        passes = [self._run(clean, self._clean_settings(), self._raw_tasks())]
        settings = self._settings()
        near, exact = settings["near_duplicates"], settings["exact_duplicates"]
        if near != NONE:
            each = [
                Task(source=task.source, pieces=(piece,)) for task, piece in _shards(passes[0])
            ]
            passes.append(self._run(signatures, _signature_settings(near), each))
        if near != NONE or exact != NONE:
            pieces = tuple(
                each.piece(task, -1) for each in passes for task in range(len(each.plan.tasks))
            )
            both = {"near_duplicates": near, "exact_duplicates": exact}
            passes.append(self._run(duplicates, both, [Task(source="", pieces=pieces)]))
        if len(passes) > 1 or settings["personal_data"] != NONE:
            steps = {"steps": {"personal_data": settings["personal_data"]}}
            passes.append(self._run(keep, steps, _last_tasks(passes)))
        return Cleaned(
            sources={name: self._opened(name, passes) for name in sorted(self.sources)},
            stages={one.plan.work: _record(one) for one in passes},
        )

    def _settings(self) -> dict[str, Any]:
        return self.preparation.model_dump(mode="json")

    def _clean_settings(self) -> dict[str, Any]:
        settings = self._settings()
        return {
            "read": settings["read"],
            "steps": {name: settings[name] for name in ("normalise", "language", "filters")},
            "sources": {
                name: self.sources[name].model_dump(mode="json", exclude=PLACES)
                for name in sorted(self.sources)
            },
        }

    def _raw_tasks(self) -> list[Task]:
        return [
            task
            for name in sorted(self.sources)
            for task in cut_source(
                name, open_source(name, self.sources[name]), self.preparation.shard_bytes
            )
        ]

    def _run(self, work: Any, settings: Mapping[str, Any], tasks: list[Task]) -> Pass:
        name = work.__name__.rpartition(".")[2]
        plan = Plan(work=name, version=work.VERSION, settings=settings, tasks=tuple(tasks))
        manifest = run_pass(plan, self.root, self.executor, self.say)
        return Pass(plan=plan, folder=self.root / plan.folder_name, manifest=manifest)

    def _opened(self, name: str, passes: list[Pass]) -> OpenSource:
        shards = tuple(
            CleanShard(path=Path(str(piece.path)), expected=passes[-1].manifest.outputs[i][0])
            for i, (task, piece) in enumerate(_shards(passes[-1]))
            if task.source == name
        )
        if passes[-1].manifest.tally.of_source(name).documents_out == 0:
            raise RecipeError(
                f"data.sources.{name}",
                f"nothing is left of it: {_losses(name, passes)}",
                f"see the examples in {passes[0].folder}/manifest.json, and set "
                "data.preparation.* accordingly, or leave the source out",
            )
        return OpenSource(inputs=shards, records=tuple(shard.record() for shard in shards))


def _signature_settings(near: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what the signatures do not depend on: it would have them written again."""
    return {name: value for name, value in near.items() if name not in {"threshold", "verify"}}


def _shards(one: Pass) -> list[tuple[Task, Piece]]:
    return [(task, one.piece(number, 0)) for number, task in enumerate(one.plan.tasks)]


def _last_tasks(passes: list[Pass]) -> list[Task]:
    """Pair each clean shard with its verdicts, if duplicates were searched for."""
    found = passes[-1] if len(passes) > 1 else None
    return [
        Task(
            source=task.source,
            pieces=(shard,) if found is None else (shard, found.piece(0, number)),
        )
        for number, (task, shard) in enumerate(_shards(passes[0]))
    ]


def _record(one: Pass) -> StageRecord:
    tally = one.manifest.tally
    counts = {name: tally.of_source(name) for name in tally.counts}
    return StageRecord(
        key=one.plan.key,
        sources={
            name: StageCounts(
                documents_in=count.documents_in,
                documents_out=count.documents_out,
                removed=dict(sorted(count.removed.items())),
            )
            for name, count in counts.items()
        },
    )


def _losses(name: str, passes: list[Pass]) -> str:
    removed: dict[str, int] = {}
    for one in passes:
        for reason, number in one.manifest.tally.of_source(name).removed.items():
            removed[reason] = removed.get(reason, 0) + number
    return ", ".join(f"{number:,} {reason}" for reason, number in sorted(removed.items())) or (
        "it had no document"
    )
