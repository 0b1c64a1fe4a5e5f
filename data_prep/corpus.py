"""From a recipe's sources to their clean text, pass by pass.

Each pass has a folder ``<root>/<pass>-<key>`` whose key hashes the pass's settings, its inputs
and the version of its code: a changed setting rebuilds its pass and what follows, no more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.config.schema.data import NearDuplicates, Preparation, Source
from components.data.manifest import StageCounts, StageRecord
from components.errors import RecipeError
from data_prep.hashes import HashFile, hash_file
from data_prep.sources import OpenSource, open_source
from data_prep.split import GroupRange
from data_prep.stages import clean, duplicates, keep, signatures
from data_prep.stages.cut import cut_source
from data_prep.stages.engine import Pass, Passes
from data_prep.stages.plan import InputPiece, PassTask, pin_lists
from data_prep.stages.shards import CleanShard
from data_prep.stages.tally import Count

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
            RecipeError: bad input, nothing left of a source, or see :func:`run_pass`.
        """
        run = self.passes.run
        passes = [run(clean, self._clean_settings(), self._raw_tasks())]
        self._check_left(passes)
        near, exact = self.preparation.near_duplicates, self.preparation.exact_duplicates
        if isinstance(near, NearDuplicates):
            each = [
                PassTask(source=task.source, pieces=(piece,))
                for task, piece in _shards(passes[0])
            ]
            passes.append(run(signatures, signatures.settings_of(near), each))
        if near != NONE or exact != NONE:
            both = self._settings("near_duplicates", "exact_duplicates")
            passes.append(run(duplicates, both, [_all_hashes(passes)]))
        personal = self._settings("personal_data")
        if len(passes) > 1 or personal["personal_data"] != NONE:
            passes.append(run(keep, {"steps": personal}, _last_tasks(passes)))
            self._check_left(passes)
        return CleanCorpus(
            sources={name: self._opened(name, passes) for name in sorted(self.sources)},
            stages={one.plan.work: _record(one) for one in passes},
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
            if passes[-1].manifest.tally.of_source(name).documents_out == 0:
                raise RecipeError(
                    f"data.sources.{name}",
                    f"nothing is left of it: {_losses(name, passes)}",
                    f"see the examples in {passes[-1].folder}/manifest.json, and set "
                    "data.preparation.* accordingly, or leave the source out",
                )

    def _opened(self, name: str, passes: list[Pass]) -> OpenSource:
        shards = tuple(
            CleanShard(path=Path(str(piece.path)), expected=passes[-1].manifest.outputs[i][0])
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


def _all_hashes(passes: list[Pass]) -> PassTask:
    """All that the search for duplicates reads: hashes, and signatures if there are any."""
    pieces = (one.piece(task, -1) for one in passes for task in range(len(one.plan.tasks)))
    return PassTask(source="", pieces=tuple(pieces))


def _shards(one: Pass) -> list[tuple[PassTask, InputPiece]]:
    return [(task, one.piece(number, 0)) for number, task in enumerate(one.plan.tasks)]


def _last_tasks(passes: list[Pass]) -> list[PassTask]:
    """Pair each clean shard with its verdicts, if duplicates were searched for."""
    found = passes[-1] if len(passes) > 1 else None
    return [
        PassTask(
            source=task.source,
            pieces=(shard,) if found is None else (shard, found.piece(0, number)),
        )
        for number, (task, shard) in enumerate(_shards(passes[0]))
    ]


def _record(one: Pass) -> StageRecord:
    return StageRecord(
        key=one.plan.key,
        sources={
            name: _counts(one.manifest.tally.of_source(name), languages)
            for name, languages in one.manifest.tally.counts.items()
        },
    )


def _counts(count: Count, languages: Mapping[str, Count]) -> StageCounts:
    return StageCounts(
        documents_in=count.documents_in,
        documents_out=count.documents_out,
        bytes_in=count.bytes_in,
        bytes_out=count.bytes_out,
        languages={name: one.documents_out for name, one in sorted(languages.items())},
        removed=dict(sorted(count.removed.items())),
        replaced=dict(sorted(count.replaced.items())),
    )


def _losses(name: str, passes: list[Pass]) -> str:
    removed: dict[str, int] = {}
    for one in passes:
        for reason, number in one.manifest.tally.of_source(name).removed.items():
            removed[reason] = removed.get(reason, 0) + number
    return ", ".join(f"{number:,} {reason}" for reason, number in sorted(removed.items())) or (
        "it had no document"
    )
