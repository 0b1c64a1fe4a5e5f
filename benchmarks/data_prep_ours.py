"""Our ways of `benchmarks.data_prep`, and the bare tokenizer; all read the files to the end."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from components.build import build
from components.data.tokenizer import Tokenizer
from components.spec.near_duplicates import NearDuplicates
from data_prep.batches import batches
from data_prep.encode import BATCH_CHARACTERS, encode
from data_prep.near_duplicates import find_duplicates, write_signatures
from data_prep.read import LocalFile

CONF = Path(__file__).resolve().parents[1] / "conf" / "tokenizer"
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


def encode_ours(files: Sequence[Path], tokenizer: Tokenizer, folder: Path) -> int:
    """Write one token file of all texts; return its tokens."""
    return encode(folder / "ours.tokens", texts_of(files), tokenizer, workers=WORKERS).tokens


def encode_bare(files: Sequence[Path], tokenizer: Tokenizer) -> int:
    """Encode each file's texts in a process of its own and throw the ids away."""
    with _pool() as pool:
        return sum(pool.map(partial(_encode_away, tokenizer=tokenizer), files))


def _encode_away(file: Path, tokenizer: Tokenizer) -> int:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread a process, as `encode` has
    return sum(
        sum(map(len, tokenizer.encode(batch)))
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
    return ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn"))
