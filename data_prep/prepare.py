"""From raw text to a folder of packed token files, in stages.

The folder's name carries a hash of all that decides its content. It is built beside its place
and renamed at the end: what has the name is complete.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from components.config.schema.data import Source
from components.data import manifest as manifests
from components.data.files import (
    REBUILD,
    FileRecord,
    HashFile,
    create_folder,
    hash_file,
    record_file,
)
from components.data.manifest import Manifest, SourceRecord, StageRecord, TokenizerRecord
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError
from data_prep.read import describe_skipped
from data_prep.sources import OpenSource, choose_split, measure_groups, open_source
from data_prep.stages.folder import Say, full_disk_told, make_folder
from data_prep.tokenise import (
    Tokenise,
    TokeniseTask,
    TokenSource,
    find_tokenizer,
    open_token_source,
    take_tokenizer,
)

SHORTEST_HELD_OUT_TOKENS = 2


@dataclass(frozen=True)
class _Preparation:
    sources: Mapping[str, OpenSource]
    stages: Mapping[str, StageRecord]
    token_sources: Mapping[str, TokenSource]
    tokenizer: Tokenizer
    tokenizer_files: tuple[FileRecord, ...]
    held_out_fraction: float
    tokenizer_sample_bytes: int | Literal["all"]

    def key(self) -> str:
        """Hash it; where the inputs lie makes no difference, what is in them does."""
        tree = {
            "format_version": manifests.FORMAT_VERSION,
            "tokenizer": self.tokenizer.settings(),
            "tokenizer_sample_bytes": self.tokenizer_sample_bytes,
            "held_out_fraction": self.held_out_fraction,
            "tokenizer_files": [file.sha256 for file in self.tokenizer_files],
            "stages": {name: stage.key for name, stage in self.stages.items()},
            "inputs": {name: source.identity() for name, source in self.sources.items()},
            "tokens": {name: source.identity() for name, source in self.token_sources.items()},
        }
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def prepare(
    *,
    sources: Mapping[str, Source | OpenSource],
    tokenizer: Tokenizer,
    tokenizer_folder: str,
    root: Path,
    name: str,
    held_out_fraction: float,
    tokenizer_sample_bytes: int | Literal["all"],
    sequence_length: int,
    verify: Literal["contents", "sizes"],
    say: Say,
    tokenise: Tokenise,
    stages: Mapping[str, StageRecord] | None = None,
    hashed: HashFile = hash_file,
) -> tuple[Path, Manifest]:
    """Build the folder ``root/<name>-<key>``, or find it built; the tokenizer is then loaded.

    What is found is compared with its manifest: the files' hashes, or with ``verify`` sizes
    their sizes alone. ``stages`` is the record of what cleaned the sources before. ``tokenise``
    says where the work is done, which changes no byte; ``hashed`` may know hashes from before.

    Raises:
        RecipeError: text that cannot be read or is too little, a tokenizer that cannot be
            trained on it, or a folder that was changed since it was built.
    """
    texts, tokens = _open_sources(sources, hashed)
    task = _Preparation(
        sources=texts,
        token_sources=tokens,
        stages=stages or {},
        tokenizer=tokenizer,
        tokenizer_files=find_tokenizer(tokenizer_folder),
        held_out_fraction=held_out_fraction,
        tokenizer_sample_bytes=tokenizer_sample_bytes,
    )
    folder = root / f"{name}-{task.key()[:12]}"
    if folder.exists():
        say(f"data: reusing {folder}")
    else:
        _build_beside(folder, task, tokenise, say)
        say(f"data: prepared {folder}")
    manifest = Manifest.read(folder)
    if manifest.key != task.key():
        problem = f"has key {manifest.key[:12]}, these data have {task.key()[:12]}"
        raise RecipeError(str(folder / manifests.FILE_NAME), problem, REBUILD)
    named = [str(index.bin_file) for source in tokens.values() for index in source.indices]
    manifest.check_recipe(folder, names=sources, vocab_size=tokenizer.vocab_size, tokens=named)
    manifest.verify(folder, contents=verify == "contents")
    if manifest.tokenizer.files:
        tokenizer.load(folder)
    _check_lengths(manifest, sequence_length)
    return folder, manifest


def _open_sources(
    sources: Mapping[str, Source | OpenSource], hashed: HashFile
) -> tuple[dict[str, OpenSource], dict[str, TokenSource]]:
    """Open the sources of text, and those whose token files are read in place."""
    texts, tokens = dict[str, OpenSource](), dict[str, TokenSource]()
    for key, source in sorted(sources.items()):
        if isinstance(source, OpenSource):
            texts[key] = source
        elif source.tokens:
            tokens[key] = open_token_source(key, source, hashed)
        else:
            texts[key] = open_source(key, source, hashed)
    return texts, tokens


def _build_beside(folder: Path, task: _Preparation, tokenise: Tokenise, say: Say) -> None:
    """Build a folder and rename it; one that another process has built meanwhile stays."""
    make_folder(folder.parent, exist_ok=True)
    with full_disk_told(folder.parent):
        try:
            with create_folder(folder) as partial:
                others = {*folder.parent.glob(f".{folder.name}.*.partial")} - {partial}
                for other in sorted(others):
                    say(f"data: unfinished, delete if no preparation is running: {other}")
                _build(partial, task, tokenise, say)
        except OSError:
            if not folder.is_dir():
                raise


def _build(folder: Path, task: _Preparation, tokenise: Tokenise, say: Say) -> None:
    groups = {
        name: source.groups or measure_groups(source.documents())
        for name, source in task.sources.items()
    }
    for name, source in task.sources.items():
        if empty := [] if source.groups else source.empty_inputs():
            say(f"{name}: {describe_skipped(empty)}")
    fraction, tokenizer = task.held_out_fraction, task.tokenizer
    splits = {name: choose_split(one, fraction) for name, one in groups.items()}
    text = TokeniseTask(
        sources=task.sources,
        splits=splits,
        tokenizer=tokenizer,
        sample_bytes=task.tokenizer_sample_bytes,
        folder=folder,
    )
    files = _make_tokenizer(task.tokenizer_files, text, tokenise, say)
    made = tuple(map(record_file, sorted(folder.iterdir())))
    vocab_size, eod_id = tokenizer.vocab_size, tokenizer.eod_id
    records = {
        name: source.measure(vocab_size=vocab_size, eod_id=eod_id, fraction=fraction)
        for name, source in task.token_sources.items()
    }
    written = tokenise.write(text, files) if splits else {}
    for name, (train, held_out) in written.items():
        say(f"{name}: {train.tokens:,} tokens to train on, {held_out.tokens:,} held out")
        records[name] = SourceRecord(
            inputs=task.sources[name].records,
            documents=groups[name].documents,
            train=(train,),
            held_out=(held_out,),
        )
    Manifest(
        key=task.key(),
        tokenizer=TokenizerRecord(tokenizer.settings(), made, vocab_size, eod_id),
        held_out_fraction=fraction,
        sources=records,
        stages=task.stages,
    ).write(folder)


def _make_tokenizer(
    given: tuple[FileRecord, ...], text: TokeniseTask, tokenise: Tokenise, say: Say
) -> tuple[FileRecord, ...]:
    """Take the files that are given, or train; token files alone need no more than the ids."""
    tokenizer = text.tokenizer
    if given:
        take_tokenizer(tokenizer, given, text.folder)
        return given
    if not text.sources:
        say(f"tokenizer: none; ids below {tokenizer.vocab_size:,}, {tokenizer.eod_id:,} ends")
        return ()
    say(f"tokenizer: training {tokenizer.vocab_size:,} pieces on {len(text.sources)} sources")
    return tokenise.train(text)


def _check_lengths(manifest: Manifest, sequence_length: int) -> None:
    for name, source in manifest.sources.items():
        for side, tokens, needed in (
            ("to train on", source.train_tokens, sequence_length + 1),
            ("held out", source.held_out_tokens, SHORTEST_HELD_OUT_TOKENS),
        ):
            if tokens < needed:
                problem = f"has {tokens:,} tokens {side}, one window needs {needed:,}"
                remedy = "give it more text, shorten budget.sequence_length, or change "
                remedy += "data.held_out_fraction"
                raise RecipeError(f"data.sources.{name}", problem, remedy)
