"""Prepare a folder of packed token files from raw text, in stages.

The folder's name contains a hash of everything that affects its content. It is built under a
temporary name and renamed at the end, so a folder with the final name is complete.
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
from data_prep.stages.runner import Say, explain_full_disk, make_folder
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

    def compute_key(self) -> str:
        """Hash the preparation: contents and formats of text files matter, not their paths."""
        tree = {
            "format_version": manifests.FORMAT_VERSION,
            "tokenizer": self.tokenizer.get_settings(),
            "tokenizer_sample_bytes": self.tokenizer_sample_bytes,
            "held_out_fraction": self.held_out_fraction,
            "tokenizer_files": [file.sha256 for file in self.tokenizer_files],
            "stages": {name: stage.key for name, stage in self.stages.items()},
            "inputs": {
                name: source.describe_content() for name, source in self.sources.items()
            },
            "tokens": {
                name: source.describe_content() for name, source in self.token_sources.items()
            },
        }
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def prepare_folder(
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
    """Build the folder ``root/<name>-<key>`` or reuse it; then load the tokenizer.

    The folder is compared with its manifest: the files' hashes, or only their sizes if
    ``verify`` is "sizes". ``stages`` is the record of the stages that cleaned the sources.
    ``tokenise`` sets where the work runs, which changes no byte; ``hashed`` may cache hashes.
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
    folder = root / f"{name}-{task.compute_key()[:12]}"
    if folder.exists():
        say(f"data: reusing {folder}")
    else:
        _build_folder(folder, task, tokenise, say)
        say(f"data: prepared {folder}")
    manifest = Manifest.from_folder(folder)
    if manifest.key != task.compute_key():
        problem = f"has key {manifest.key[:12]}, expected {task.compute_key()[:12]}"
        raise RecipeError(str(folder / manifests.FILE_NAME), problem, REBUILD)
    bin_files = [str(index.bin_file) for source in tokens.values() for index in source.indices]
    manifest.check_recipe(
        folder, names=sources, vocab_size=tokenizer.vocab_size, tokens=bin_files
    )
    manifest.verify_files(folder, contents=verify == "contents")
    if manifest.tokenizer.files:
        tokenizer.load_file(folder)
    _check_lengths(manifest, sequence_length)
    return folder, manifest


def _open_sources(
    sources: Mapping[str, Source | OpenSource], hashed: HashFile
) -> tuple[dict[str, OpenSource], dict[str, TokenSource]]:
    """Open the text sources, and the sources whose token files are read in place."""
    tokens = {
        key: open_token_source(key, source, hashed)
        for key, source in sorted(sources.items())
        if isinstance(source, Source) and source.tokens
    }
    texts = {
        key: open_source(key, source, hashed) if isinstance(source, Source) else source
        for key, source in sorted(sources.items())
        if key not in tokens
    }
    return texts, tokens


def _build_folder(folder: Path, task: _Preparation, tokenise: Tokenise, say: Say) -> None:
    """Build a folder and rename it; keep one that another process has built in the meantime."""
    make_folder(folder.parent)
    with explain_full_disk(folder.parent):
        try:
            with create_folder(folder) as partial:
                others = {*folder.parent.glob(f".{folder.name}.*.partial")} - {partial}
                for other in sorted(others):
                    say(f"data: {other} is unfinished: delete it if no preparation is running")
                _build(partial, task, tokenise, say)
        except OSError:
            if not folder.is_dir():
                raise


def _build(folder: Path, task: _Preparation, tokenise: Tokenise, say: Say) -> None:
    groups = {
        name: source.groups or measure_groups(source.iter_documents())
        for name, source in task.sources.items()
    }
    for name, source in task.sources.items():
        if empty := [] if source.groups else source.empty_inputs():
            say(f"{name}: {describe_skipped(empty)}")
    fraction, tokenizer = task.held_out_fraction, task.tokenizer
    splits = {name: choose_split(group_range, fraction) for name, group_range in groups.items()}
    tokenise_task = TokeniseTask(
        sources=task.sources,
        splits=splits,
        tokenizer=tokenizer,
        sample_bytes=task.tokenizer_sample_bytes,
        folder=folder,
    )
    files = _make_tokenizer(task.tokenizer_files, tokenise_task, tokenise, say)
    tokenizer_files = tuple(map(record_file, sorted(folder.iterdir())))
    vocab_size, eod_id = tokenizer.vocab_size, tokenizer.eod_id
    records = {
        name: source.measure_files(vocab_size=vocab_size, eod_id=eod_id, fraction=fraction)
        for name, source in task.token_sources.items()
    }
    written = tokenise.write_token_files(tokenise_task, files) if splits else {}
    for name, (train, held_out) in written.items():
        say(f"{name}: {train.tokens:,} training tokens, {held_out.tokens:,} held-out tokens")
        records[name] = SourceRecord(
            inputs=task.sources[name].records,
            documents=groups[name].documents,
            train=(train,),
            held_out=(held_out,),
        )
    Manifest(
        key=task.compute_key(),
        tokenizer=TokenizerRecord(
            tokenizer.get_settings(), tokenizer_files, vocab_size, eod_id
        ),
        held_out_fraction=fraction,
        sources=records,
        stages=task.stages,
    ).save_manifest(folder)


def _make_tokenizer(
    given: tuple[FileRecord, ...], text: TokeniseTask, tokenise: Tokenise, say: Say
) -> tuple[FileRecord, ...]:
    """Copy the given files, or train; sources of token files alone need no tokenizer files."""
    tokenizer = text.tokenizer
    if given:
        take_tokenizer(tokenizer, given, text.folder)
        return given
    if not text.sources:
        say(f"tokenizer: none; {tokenizer.vocab_size:,} ids, {tokenizer.eod_id:,} ends texts")
        return ()
    say(f"tokenizer: training {tokenizer.vocab_size:,} pieces on {len(text.sources)} sources")
    return tokenise.train_tokenizer(text)


def _check_lengths(manifest: Manifest, sequence_length: int) -> None:
    for name, source in manifest.sources.items():
        for side, tokens, needed in (
            ("training", source.train_tokens, sequence_length + 1),
            ("held-out", source.held_out_tokens, SHORTEST_HELD_OUT_TOKENS),
        ):
            if tokens < needed:
                problem = f"has {tokens:,} {side} tokens, one sample needs {needed:,}"
                remedy = "add text to the source, reduce budget.sequence_length, or change "
                remedy += "data.held_out_fraction"
                raise RecipeError(f"data.sources.{name}", problem, remedy)
