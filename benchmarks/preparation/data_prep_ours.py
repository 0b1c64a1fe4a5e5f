"""Our ways of `data_prep`, and the bare tokenizer; all read the files to the end."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer as Engine

from benchmarks.kept import ROOT
from components.build import build
from components.config.schema.data import NearDuplicates
from components.data.token_file import BATCH_CHARACTERS, batches, encode
from components.data.tokenizer import Tokenizer
from data_prep.near_duplicates import find_duplicates, write_signatures
from data_prep.read import LocalFile

CONF = ROOT / "conf" / "tokenizer"
WORKERS = 2
NGRAM, BANDS, ROWS = 5, 16, 8


def tokenizer_of(family: str, **changes: Any) -> Tokenizer:
    """Build the tokenizer of a file in ``conf/tokenizer``, neither trained nor loaded."""
    section = yaml.safe_load((CONF / f"{family}.yaml").read_text("utf-8"))
    tokenizer: Tokenizer = build({**section, **changes}, "tokenizer")
    return tokenizer


def texts_of(files: Sequence[Path]) -> Iterator[str]:
    """Read the texts as preparation does."""
    for file in files:
        reader = LocalFile(path=file, name=file.name, where="benchmark", column="text")
        yield from (document.text for document in reader.documents())


@dataclass(frozen=True)
class DiskTokenizer:
    """A tokenizer on disk, which each process loads for itself."""

    family: str
    pieces: int
    folder: Path

    def load(self) -> Tokenizer:
        tokenizer = tokenizer_of(self.family, vocab_size=self.pieces)
        tokenizer.load(self.folder)
        return tokenizer


def encode_ours(files: Sequence[Path], trained: DiskTokenizer, folder: Path) -> int:
    """Write a token file of each file in a process of its own; return the tokens."""
    targets = [folder / f"{file.stem}.tokens" for file in files]
    with _pool() as pool:
        return sum(pool.map(partial(_encode_file, trained=trained), files, targets))


def _encode_file(file: Path, target: Path, trained: DiskTokenizer) -> int:
    return encode(target, texts_of([file]), trained.load()).tokens


def encode_bare(files: Sequence[Path], trained: DiskTokenizer) -> int:
    """Encode each file's texts in a process of its own and throw the ids away."""
    with _pool() as pool:
        return sum(pool.map(partial(_encode_away, trained=trained), files))


def _encode_away(file: Path, trained: DiskTokenizer) -> int:
    tokenizer = trained.load()
    return sum(
        sum(map(len, tokenizer.encode(batch)))
        for batch in batches(texts_of([file]), BATCH_CHARACTERS)
    )


def encode_engine(files: Sequence[Path], trained: DiskTokenizer) -> int:
    """Do the same with `tokenizers` alone."""
    with _pool() as pool:
        return sum(pool.map(partial(_encode_by_engine, trained=trained), files))


def _encode_by_engine(file: Path, trained: DiskTokenizer) -> int:
    engine = Engine.from_file(str(trained.folder / "tokenizer.json"))
    return sum(
        sum(len(one.ids) for one in engine.encode_batch_fast(batch, add_special_tokens=False))
        for batch in batches(texts_of([file]), BATCH_CHARACTERS)
    )


def settings_of(threshold: float | str, bands: int, rows: int) -> NearDuplicates:
    """Vary what decides which candidates there are and which of them count."""
    return NearDuplicates.model_validate({
        "ngram": NGRAM,
        "bands": bands,
        "rows": rows,
        "threshold": threshold,
        "seed": 0,
    })


def remove_ours(
    files: Sequence[Path], folder: Path, settings: NearDuplicates
) -> list[list[int]]:
    """Sign each file in a process of its own, then find what to remove of each."""
    signed = [folder / f"{file.stem}.npy" for file in files]
    with _pool() as pool:
        list(pool.map(partial(_sign, settings=settings), files, signed))
    found = find_duplicates(signed, settings, folder)
    return [indices.tolist() for indices in found]


def _sign(file: Path, signed: Path, settings: NearDuplicates) -> int:
    return write_signatures(texts_of([file]), signed, settings)


def _pool() -> ProcessPoolExecutor:
    spawn = get_context("spawn")
    return ProcessPoolExecutor(WORKERS, mp_context=spawn, initializer=_one_thread)


def _one_thread() -> None:
    os.environ["RAYON_NUM_THREADS"] = "1"  # as a worker of a pass has
