"""Our tools of `data_prep`, the bare engine and `tokenizers`."""

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

from benchmarks.results_store import ROOT
from components.build import build_node
from components.config.schema.data import NearDuplicates
from components.data.token_file import BATCH_CHARACTERS, encode_to_file, iter_batches
from components.data.tokenizer import Tokenizer
from data_prep.near_duplicates import find_duplicates, write_signatures
from data_prep.read import LocalFile

CONF = ROOT / "conf" / "tokenizer"
WORKERS = 2
NGRAM, BANDS, ROWS = 5, 16, 8


def build_tokenizer(family: str, **changes: Any) -> Tokenizer:
    """Build the untrained tokenizer of a file in ``conf/tokenizer``."""
    section = yaml.safe_load((CONF / f"{family}.yaml").read_text("utf-8"))
    tokenizer: Tokenizer = build_node({**section, **changes}, "tokenizer")
    return tokenizer


def read_texts(files: Sequence[Path]) -> Iterator[str]:
    """Yield the texts of files, with the reader of the preparation."""
    for file in files:
        reader = LocalFile(path=file, name=file.name, where="benchmark", column="text")
        yield from (document.text for document in reader.iter_documents())


@dataclass(frozen=True)
class DiskTokenizer:
    """A tokenizer on disk, which each process loads."""

    family: str
    pieces: int
    folder: Path

    def load(self) -> Tokenizer:
        tokenizer = build_tokenizer(self.family, vocab_size=self.pieces)
        tokenizer.load_file(self.folder)
        return tokenizer


def encode_files(tool: str, files: Sequence[Path], trained: DiskTokenizer, folder: Path) -> int:
    """Encode each file in a process; return the number of tokens.

    Only our tool writes token files; the bare engine and `tokenizers` discard the ids.
    """
    with _pool() as pool:
        encode = partial(ENCODERS[tool], trained=trained, folder=folder)
        return sum(pool.map(encode, files))


def _encode_file(file: Path, trained: DiskTokenizer, folder: Path) -> int:
    target = folder / f"{file.stem}.tokens"
    return encode_to_file(target, read_texts([file]), trained.load()).tokens


def _encode_bare(file: Path, trained: DiskTokenizer, folder: Path) -> int:
    tokenizer = trained.load()
    return sum(
        sum(map(len, tokenizer.encode(batch)))
        for batch in iter_batches(read_texts([file]), BATCH_CHARACTERS)
    )


def _encode_by_engine(file: Path, trained: DiskTokenizer, folder: Path) -> int:
    engine = Engine.from_file(str(trained.folder / "tokenizer.json"))
    return sum(
        sum(len(row.ids) for row in engine.encode_batch_fast(batch, add_special_tokens=False))
        for batch in iter_batches(read_texts([file]), BATCH_CHARACTERS)
    )


ENCODERS = {"ours": _encode_file, "bare": _encode_bare, "tokenizers": _encode_by_engine}


def duplicate_settings(threshold: float | str, bands: int, rows: int) -> NearDuplicates:
    """Return settings of near duplicates with these bands, rows and threshold."""
    settings = {"ngram": NGRAM, "bands": bands, "rows": rows, "threshold": threshold}
    return NearDuplicates.model_validate(settings | {"seed": 0})


def remove_ours(
    files: Sequence[Path], folder: Path, settings: NearDuplicates
) -> list[list[int]]:
    """Write signatures of each file in a process; return the documents to remove per file."""
    signatures = [folder / f"{file.stem}.npy" for file in files]
    with _pool() as pool:
        list(pool.map(partial(_sign_file, settings=settings), files, signatures))
    return [indices.tolist() for indices in find_duplicates(signatures, settings, folder)]


def _sign_file(file: Path, target: Path, settings: NearDuplicates) -> int:
    return write_signatures(read_texts([file]), target, settings)


def _pool() -> ProcessPoolExecutor:
    spawn = get_context("spawn")
    return ProcessPoolExecutor(WORKERS, mp_context=spawn, initializer=_use_one_thread)


def _use_one_thread() -> None:
    os.environ["RAYON_NUM_THREADS"] = "1"  # as in workers of the preparation
