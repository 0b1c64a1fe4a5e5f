"""A small corpus in three languages, with planted duplicates, and preparations of it."""

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from components.config.schema.data import Preparation, Source
from components.data.manifest import Manifest
from data_prep.corpus import CleanCorpus, Corpus
from data_prep.prepare import prepare_folder
from data_prep.stages.runner import Executor, Local, StageRunner
from data_prep.stages.shards import CleanShard
from data_prep.tokenise import LocalTokenise

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "conf" / "preparation" / "engine.yaml"
LANGUAGES = ("de", "en", "fr")
EXACT: dict[str, Any] = {"exact_duplicates": {"unit": "document"}}
MANY_TASKS: dict[str, Any] = {**EXACT, "shard_bytes": 1_000}


def preparation_of(**changes: Any) -> Preparation:
    """Return a preparation with only the given stages, in tasks of 2 kB."""
    settings = yaml.safe_load(ENGINE.read_text("utf-8"))
    return Preparation.model_validate({**settings, "shard_bytes": 2_000, **changes})


def write_corpus(folder: Path) -> dict[str, Source]:
    """Write a text file (de), three JSONL files (en) and a text file (fr), with duplicates."""
    folder.mkdir()
    draw = random.Random(7)
    texts = {name: paragraphs(name) for name in LANGUAGES}
    (folder / "de.txt").write_text("\n\n".join([*texts["de"], *texts["de"][:4]]), "utf-8")
    for number in range(3):
        lines = draw.choices(texts["en"], k=9)
        records = "".join(json.dumps({"text": text}) + "\n" for text in lines)
        (folder / f"en{number}.jsonl").write_text(records, "utf-8")
    (folder / "fr.txt").write_text("\n\n".join(texts["fr"] + texts["de"][5:9]), "utf-8")
    return {
        "de": Source(files=(f"{folder}/de.txt",)),
        "en": Source(files=(f"{folder}/en*.jsonl",)),
        "fr": Source(files=(f"{folder}/fr.txt",)),
    }


def paragraphs(language: str) -> list[str]:
    text = (ROOT / "corpora" / "eu24" / f"{language}.txt").read_text("utf-8")
    return [paragraph.strip("\n") for paragraph in text.split("\n\n") if paragraph.strip()]


def clean(
    sources: Mapping[str, Source],
    root: Path,
    *,
    executor: Executor | None = None,
    messages: list[str] | None = None,
    **changes: Any,
) -> CleanCorpus:
    """Run every stage, in this process unless another executor is given."""
    runner = runner_of(root, executor=executor, messages=messages)
    preparation = preparation_of(**changes)
    return Corpus(sources=sources, preparation=preparation, runner=runner).run_stages()


def prepare(*, messages: list[str] | None = None, **changes: Any) -> tuple[Path, Manifest]:
    """Prepare a folder with default settings."""
    settings: dict[str, Any] = {"name": "mix", "tokenizer_folder": "none", "verify": "contents"}
    settings |= {"held_out_fraction": 0.1, "sequence_length": 16}
    settings |= {"tokenizer_sample_bytes": "all", "tokenise": LocalTokenise()}
    settings |= {"say": (messages if messages is not None else []).append}
    return prepare_folder(**(settings | changes))


def runner_of(
    root: Path, *, executor: Executor | None = None, messages: list[str] | None = None
) -> StageRunner:
    say = (messages if messages is not None else []).append
    return StageRunner(root=root, executor=executor or Local(workers=1), say=say)


def texts_of(cleaned: CleanCorpus) -> dict[str, list[str]]:
    return {
        name: [document.text for document in source.iter_documents()]
        for name, source in cleaned.sources.items()
    }


def digest_of(cleaned: CleanCorpus) -> str:
    """Hash the result of a preparation: hashes of shards, keys and counts."""
    shards = {name: source.records for name, source in cleaned.sources.items()}
    return hashlib.sha256(repr((shards, cleaned.stages)).encode()).hexdigest()


def shards_of(cleaned: CleanCorpus, name: str) -> list[Path]:
    inputs = cleaned.sources[name].inputs
    return [shard.path for shard in inputs if isinstance(shard, CleanShard)]
