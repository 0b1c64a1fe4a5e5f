"""From a recipe's sources to their clean text, pass by pass.

Each pass has a folder ``<root>/<pass>-<key>`` whose key hashes the pass's settings, its inputs
and the version of its code: a changed setting rebuilds its pass and what follows, no more.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.config.schema.data import NearDuplicates, Preparation, Source
from components.data.files import HashFile, hash_file
from components.data.manifest import StageCounts, StageRecord
from components.errors import RecipeError
from data_prep.sources import GroupRange, OpenSource, open_source
from data_prep.stages.duplicates import signature_settings
from data_prep.stages.engine import Pass, Passes
from data_prep.stages.plan import InputPiece, PassTask, cut_source, pin_lists
from data_prep.stages.shards import CleanShard

READING = {"embedded", "dataset", "column", "language"}  # where files lie makes no difference
NONE = "none"


@dataclass(frozen=True, kw_only=True)
class CleanCorpus:
    """The sources' clean text, and the record of every pass that made it."""

    sources: Mapping[str, OpenSource]
    stages: Mapping[str, StageRecord]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """All that a preparation needs to know."""

    sources: Mapping[str, Source]
    preparation: Preparation
    passes: Passes
    hashed: HashFile = hash_file

    def clean(self) -> CleanCorpus:
        """Bring every pass to its end, or find it there.

        Raises:
            RecipeError: bad input, nothing left of a source, or see :meth:`Passes.run`.
        """
        run = self.passes.run
        passes = [run("clean", self._clean_settings(), self._raw_tasks())]
        self._check_left(passes)
        near, exact = self.preparation.near_duplicates, self.preparation.exact_duplicates
        if isinstance(near, NearDuplicates):
            each = [
                PassTask(source=task.source, pieces=(piece,))
                for task, piece in _shards(passes[0])
            ]
            passes.append(run("signatures", signature_settings(near), each))
        if near != NONE or exact != NONE:
            # One task reads all hashes, and signatures if there are any.
            files = [
                one.piece(task, -1) for one in passes for task in range(len(one.plan.tasks))
            ]
            both = self._settings("near_duplicates", "exact_duplicates")
            passes.append(run("duplicates", both, [PassTask(source="", pieces=tuple(files))]))
        personal = self._settings("personal_data")
        if len(passes) > 1 or personal["personal_data"] != NONE:
            passes.append(run("keep", {"steps": personal}, _last_tasks(passes)))
            self._check_left(passes)
        return CleanCorpus(
            sources={name: self._opened(name, passes) for name in sorted(self.sources)},
            stages={one.plan.work: _stage_record(one) for one in passes},
        )

    def _settings(self, *names: str) -> dict[str, Any]:
        return self.preparation.model_dump(mode="json", include=set(names))

    def _clean_settings(self) -> dict[str, Any]:
        return {
            **self._settings("read"),
            **pin_lists(self._settings("normalise", "language", "filters")),
            "sources": {
                name: self.sources[name].model_dump(mode="json", include=READING)
                for name in sorted(self.sources)
            },
        }

    def _raw_tasks(self) -> list[PassTask]:
        return [
            task
            for name in sorted(self.sources)
            for task in cut_source(
                name,
                open_source(name, self.sources[name], self.hashed),
                self.preparation.shard_bytes,
                self.hashed,
            )
        ]

    def _check_left(self, passes: list[Pass]) -> None:
        """Refuse to go on where a source has lost every document."""
        for name in sorted(self.sources):
            counts = [one.manifest.tally.of_source(name) for one in passes]
            if counts[-1].documents_out == 0:
                removed = sum((Counter(count.removed) for count in counts), Counter[str]())
                losses = ", ".join(f"{n:,} {why}" for why, n in sorted(removed.items()))
                raise RecipeError(
                    f"data.sources.{name}",
                    f"nothing is left of it: {losses or 'it had no document'}",
                    f"see the examples in {passes[-1].folder}/manifest.json, and set "
                    "data.preparation.* accordingly, or leave the source out",
                )

    def _opened(self, name: str, passes: list[Pass]) -> OpenSource:
        shards = tuple(
            CleanShard(path=piece.file, expected=passes[-1].manifest.outputs[i][0])
            for i, (task, piece) in enumerate(_shards(passes[-1]))
            if task.source == name
        )
        tally = passes[-1].manifest.tally
        return OpenSource(
            inputs=shards,
            records=tuple(shard.record(self.hashed) for shard in shards),
            column="text",
            groups=GroupRange(*tally.groups[name], tally.of_source(name).documents_out),
        )


def _shards(one: Pass) -> list[tuple[PassTask, InputPiece]]:
    return [(task, one.piece(number, 0)) for number, task in enumerate(one.plan.tasks)]


def _last_tasks(passes: list[Pass]) -> list[PassTask]:
    """Pair each clean shard with its verdicts, if duplicates were searched for."""
    tasks = []
    for number, (task, shard) in enumerate(_shards(passes[0])):
        verdicts = (passes[-1].piece(0, number),) if len(passes) > 1 else ()
        tasks.append(PassTask(source=task.source, pieces=(shard, *verdicts)))
    return tasks


def _stage_record(one: Pass) -> StageRecord:
    tally, sources = one.manifest.tally, {}
    for name, languages in tally.counts.items():
        count = tally.of_source(name)
        sources[name] = StageCounts(
            documents_in=count.documents_in,
            documents_out=count.documents_out,
            bytes_in=count.bytes_in,
            bytes_out=count.bytes_out,
            languages={key: each.documents_out for key, each in sorted(languages.items())},
            removed=dict(sorted(count.removed.items())),
            replaced=dict(sorted(count.replaced.items())),
        )
    return StageRecord(key=one.plan.key, sources=sources)
