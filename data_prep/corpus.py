"""Clean the text of a recipe's sources, stage by stage.

Each stage has a folder ``<root>/<stage>-<key>``. The key hashes the stage's settings, its
inputs and its version. So a changed setting rebuilds its stage and all later stages.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from components.config.schema.data import NearDuplicates, Preparation, Source
from components.data.files import HashFile, hash_file
from components.data.manifest import StageCounts, StageRecord
from components.errors import RecipeError
from data_prep.sources import GroupRange, OpenSource, open_source
from data_prep.stages import plan
from data_prep.stages.plan import InputPiece, StageTask
from data_prep.stages.runner import Stage, StageRunner
from data_prep.stages.shards import CleanShard

READING = {"embedded", "dataset", "column", "language"}  # what affects the text
NONE = "none"


@dataclass(frozen=True, kw_only=True)
class CleanCorpus:
    """The sources' clean text, and the record of every stage that produced it."""

    sources: Mapping[str, OpenSource]
    stages: Mapping[str, StageRecord]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The sources to clean, the settings, and the runner; ``hashed`` may cache input hashes."""

    sources: Mapping[str, Source]
    preparation: Preparation
    runner: StageRunner
    hashed: HashFile = hash_file

    def run_stages(self) -> CleanCorpus:
        """Run every stage, or reuse it if it is finished; refuse sources without documents."""
        run, names = self.runner.run_stage, sorted(self.sources)
        settings = {
            **self._settings("read"),
            **plan.pin_lists(self._settings("normalise", "language", "filters")),
            "sources": {
                name: self.sources[name].model_dump(mode="json", include=READING)
                for name in names
            },
        }
        raw = [task for name in names for task in self._raw_tasks(name)]
        stages = [run("clean", settings, raw)]
        self._check_left(stages)
        near, exact = self.preparation.near_duplicates, self.preparation.exact_duplicates
        if isinstance(near, NearDuplicates):
            shards = _shards(stages[0])
            sign_tasks = [
                StageTask(source=task.source, pieces=(shard,)) for task, shard in shards
            ]
            # Signatures do not depend on the threshold or on how slots are grouped into bands.
            slots = {"bands": near.bands * near.rows, "rows": 1, "threshold": "none"}
            stages.append(
                run("signatures", {**near.model_dump(mode="json"), **slots}, sign_tasks)
            )
        if near != NONE or exact != NONE:
            # One task reads all hashes, and all signatures if there are any.
            files = [
                stage.output_piece(i, -1)
                for stage in stages
                for i in range(len(stage.plan.tasks))
            ]
            options = self._settings("near_duplicates", "exact_duplicates")
            stages.append(
                run("duplicates", options, [StageTask(source="", pieces=tuple(files))])
            )
        personal = self._settings("personal_data")
        if len(stages) > 1 or personal["personal_data"] != NONE:
            tasks = []
            for number, (task, shard) in enumerate(_shards(stages[0])):
                verdicts = (stages[-1].output_piece(0, number),) if len(stages) > 1 else ()
                tasks.append(StageTask(source=task.source, pieces=(shard, *verdicts)))
            stages.append(run("keep", {"steps": personal}, tasks))
            self._check_left(stages)
        return CleanCorpus(
            sources={name: self._opened(name, stages) for name in names},
            stages={stage.plan.work: _stage_record(stage) for stage in stages},
        )

    def _settings(self, *names: str) -> dict[str, Any]:
        return self.preparation.model_dump(mode="json", include=set(names))

    def _raw_tasks(self, name: str) -> Iterator[StageTask]:
        opened = open_source(name, self.sources[name], self.hashed)
        return plan.cut_source(name, opened, self.preparation.shard_bytes, self.hashed)

    def _check_left(self, stages: list[Stage]) -> None:
        """Raise a RecipeError if a source has lost every document."""
        for name in sorted(self.sources):
            counts = [stage.manifest.tally.of_source(name) for stage in stages]
            if counts[-1].documents_out == 0:
                removed = sum((Counter(count.removed) for count in counts), Counter[str]())
                losses = ", ".join(f"{n:,} {why}" for why, n in sorted(removed.items()))
                problem = f"no document remains: {losses or 'the source had no document'}"
                examples = f"see the examples in {stages[-1].folder}/manifest.json"
                remedy = "relax data.preparation.*, or remove the source"
                raise RecipeError(f"data.sources.{name}", problem, f"{examples}, and {remedy}")

    def _opened(self, name: str, stages: list[Stage]) -> OpenSource:
        shards = tuple(
            CleanShard(path=piece.file_path, expected=stages[-1].manifest.outputs[i][0])
            for i, (task, piece) in enumerate(_shards(stages[-1]))
            if task.source == name
        )
        tally = stages[-1].manifest.tally
        return OpenSource(
            inputs=shards,
            records=tuple(shard.hash_input(self.hashed) for shard in shards),
            column="text",
            groups=GroupRange(*tally.groups[name], tally.of_source(name).documents_out),
        )


def _shards(stage: Stage) -> list[tuple[StageTask, InputPiece]]:
    return [
        (task, stage.output_piece(number, 0)) for number, task in enumerate(stage.plan.tasks)
    ]


def _stage_record(stage: Stage) -> StageRecord:
    tally, sources = stage.manifest.tally, {}
    for name, languages in tally.counts.items():
        count = tally.of_source(name)
        count.removed = dict(sorted(count.removed.items()))
        count.replaced = dict(sorted(count.replaced.items()))
        documents_out = {
            key: language_count.documents_out
            for key, language_count in sorted(languages.items())
        }
        sources[name] = StageCounts(**vars(count), languages=documents_out)
    return StageRecord(key=stage.plan.plan_key, sources=sources)
