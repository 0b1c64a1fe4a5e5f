"""From a recipe's sources to their clean text, pass by pass.

Each pass has a folder ``<root>/<pass>-<key>`` whose key hashes the pass's settings, its inputs
and the version of its code: a changed setting rebuilds its pass and what follows, no more.
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
from data_prep.stages.passes import Pass, Passes
from data_prep.stages.plan import InputPiece, PassTask
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
    """What is cleaned, how, and where; ``hashed`` may know hashes of the inputs."""

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
        passes = [run("clean", self._clean_settings(), list(self._raw_tasks()))]
        self._check_left(passes)
        near, exact = self.preparation.near_duplicates, self.preparation.exact_duplicates
        if isinstance(near, NearDuplicates):
            shards = _shards(passes[0])
            each = [PassTask(source=task.source, pieces=(shard,)) for task, shard in shards]
            # Neither how the slots are banded nor the threshold changes a signature.
            slots = {"bands": near.bands * near.rows, "rows": 1, "threshold": "none"}
            passes.append(run("signatures", {**near.model_dump(mode="json"), **slots}, each))
        if near != NONE or exact != NONE:
            # One task reads all hashes, and signatures if there are any.
            files = [one.piece(i, -1) for one in passes for i in range(len(one.plan.tasks))]
            both = self._settings("near_duplicates", "exact_duplicates")
            passes.append(run("duplicates", both, [PassTask(source="", pieces=tuple(files))]))
        personal = self._settings("personal_data")
        if len(passes) > 1 or personal["personal_data"] != NONE:
            passes.append(run("keep", {"steps": personal}, list(_last_tasks(passes))))
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
            **plan.pin_lists(self._settings("normalise", "language", "filters")),
            "sources": {
                name: source.model_dump(mode="json", include=READING)
                for name, source in sorted(self.sources.items())
            },
        }

    def _raw_tasks(self) -> Iterator[PassTask]:
        for name, source in sorted(self.sources.items()):
            opened = open_source(name, source, self.hashed)
            yield from plan.cut_source(name, opened, self.preparation.shard_bytes, self.hashed)

    def _check_left(self, passes: list[Pass]) -> None:
        """Refuse to go on where a source has lost every document."""
        for name in sorted(self.sources):
            counts = [one.manifest.tally.of_source(name) for one in passes]
            if counts[-1].documents_out == 0:
                removed = sum((Counter(count.removed) for count in counts), Counter[str]())
                losses = ", ".join(f"{n:,} {why}" for why, n in sorted(removed.items()))
                problem = f"nothing is left of it: {losses or 'it had no document'}"
                examples = f"see the examples in {passes[-1].folder}/manifest.json"
                remedy = "set data.preparation.* accordingly, or leave the source out"
                raise RecipeError(f"data.sources.{name}", problem, f"{examples}, and {remedy}")

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


def _last_tasks(passes: list[Pass]) -> Iterator[PassTask]:
    """Pair each clean shard with its verdicts, if duplicates were searched for."""
    for number, (task, shard) in enumerate(_shards(passes[0])):
        verdicts = (passes[-1].piece(0, number),) if len(passes) > 1 else ()
        yield PassTask(source=task.source, pieces=(shard, *verdicts))


def _stage_record(one: Pass) -> StageRecord:
    tally, sources = one.manifest.tally, {}
    for name, languages in tally.counts.items():
        count = tally.of_source(name)
        count.removed = dict(sorted(count.removed.items()))
        count.replaced = dict(sorted(count.replaced.items()))
        out = {key: each.documents_out for key, each in sorted(languages.items())}
        sources[name] = StageCounts(**vars(count), languages=out)
    return StageRecord(key=one.plan.key, sources=sources)
