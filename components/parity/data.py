"""Drawn tokens in place of a corpus: a prepared folder that any recipe can read.

The files, the manifest and so the order of the samples are those of a real run; only the tokens
come from a generator, seeded by the recipe's seed and the source's name.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from components.config.schema.recipe import Recipe
from components.config.schema.types import thaw
from components.data.manifest import Manifest, SourceRecord, TokenizerRecord
from components.data.token_file import write_token_file

_WINDOWS = 16  # a source: some sources are read more than once
_EOD_ID = 0


def draw_data(recipe: Recipe, folder: Path) -> None:
    """Write token files for every share of ``recipe``, and their manifest."""
    folder.mkdir(parents=True)
    vocab_size = recipe.tokenizer["vocab_size"]
    tokens = _WINDOWS * recipe.budget.sequence_length + 1
    sources = {}
    for name in recipe.data.names:
        train, held_out = (
            write_token_file(
                folder / f"{name}.{part}.bin",
                _documents(f"{recipe.budget.seed}/{name}/{part}", tokens, recipe),
                eod_id=_EOD_ID,
                vocab_size=vocab_size,
            )
            for part in ("train", "held_out")
        )
        sources[name] = SourceRecord(
            inputs=(), documents=train.documents, train=(train,), held_out=(held_out,)
        )
    tokenizer = TokenizerRecord(thaw(recipe.tokenizer), (), vocab_size, _EOD_ID)
    Manifest("drawn", tokenizer, recipe.data.held_out_fraction, sources).write(folder)


def _documents(key: str, tokens: int, recipe: Recipe) -> Iterator[list[int]]:
    """Draw documents of about a window, ``tokens`` or more in all.

    Small ids are common and large ones rare, as in text: there is something to learn.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    generator = np.random.default_rng(int.from_bytes(digest))
    vocab_size, length = recipe.tokenizer["vocab_size"], recipe.budget.sequence_length
    while tokens > 0:
        size = int(generator.integers(1, 2 * length))
        yield (generator.random(size) ** 3 * vocab_size).astype(int).tolist()
        tokens -= size + 1
