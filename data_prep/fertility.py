"""Fertility: how many tokens a tokenizer makes of a word, and how many bytes a token holds.

Fertility is tokens a word (Rust et al. 2021, "How Good is Your Tokenizer?", arXiv 2012.15613,
Section 3.2); words are what white space separates, so that of text without spaces bytes a token
say more.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from components.config.schema.data import Source
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError
from data_prep.sources import choose_split, measure_groups, open_source
from data_prep.tokenise import training_texts

MEASURED_DOCUMENTS, MEASURED_CHARACTERS = 200, 2_000  # of a source, of a document
EVERY = "all"  # trained on every source

Counts = dict[str, float]


def count_tokens(texts: Sequence[str], tokenizer: Tokenizer) -> Counts:
    """Count documents, tokens, words and bytes of texts, and tokens a word, bytes a token."""
    tokens = sum(len(ids) for ids in tokenizer.encode(texts))
    words = sum(len(text.split()) for text in texts)
    size = sum(len(text.encode()) for text in texts)
    return {
        "documents": len(texts),
        "tokens": tokens,
        "words": words,
        "bytes": size,
        "tokens_per_word": tokens / max(words, 1),
        "bytes_per_token": size / max(tokens, 1),
    }


def measure_tokenizer(
    *,
    sources: Mapping[str, Source],
    shares: Mapping[str, float],
    tokenizer: Tokenizer,
    trained_on: str,
    held_out_fraction: float,
    sample_bytes: int | Literal["all"],
    folder: Path,
) -> dict[str, Any]:
    """Train ``tokenizer`` into ``folder``, and count over what each source holds out.

    It is trained on all sources or on the one that ``trained_on`` names, which then gives as
    many ``sample_bytes`` as all would together. ``fertility`` has the counts of each source,
    ``mean`` takes all alike, ``mixture`` takes ``shares`` as shares of the text's bytes.

    Raises:
        RecipeError: there is no such source, or too little text for this vocabulary.
    """
    chosen = dict(sources) if trained_on == EVERY else _one(sources, trained_on)
    opened = {name: open_source(name, source) for name, source in sorted(sources.items())}
    splits = {
        name: choose_split(measure_groups(one.documents()), held_out_fraction)
        for name, one in opened.items()
    }
    read = {name: one.documents() for name, one in opened.items() if name in chosen}
    each = sample_bytes if sample_bytes == "all" else sample_bytes * len(sources) // len(chosen)
    tokenizer.train(training_texts(read, splits, each), folder)
    found = {
        name: count_tokens(
            first_texts(map(splits[name].held_out_text, one.documents())), tokenizer
        )
        for name, one in opened.items()
    }
    return {"trained_on": trained_on, "fertility": found, **_over_all(found, shares)}


def first_texts(texts: Iterable[str]) -> list[str]:
    """Take the beginnings of the first texts that are not empty."""
    kept = islice(filter(None, texts), MEASURED_DOCUMENTS)
    return [text[:MEASURED_CHARACTERS] for text in kept]


def _one(sources: Mapping[str, Source], name: str) -> dict[str, Source]:
    if name not in sources:
        problem = f"there is no source {name!r} to train a tokenizer on"
        known = ", ".join([EVERY, *sorted(sources)])
        raise RecipeError("trained_on", problem, f"known: {known}")
    return {name: sources[name]}


def _over_all(found: Mapping[str, Counts], shares: Mapping[str, float]) -> dict[str, Counts]:
    parts = {name: shares.get(name, 0.0) for name in found} if shares else {}
    if not any(parts.values()):
        parts = dict.fromkeys(found, 1.0)
    tokens = sum(share / found[name]["bytes_per_token"] for name, share in parts.items())
    fertilities = [one["tokens_per_word"] for one in found.values()]
    return {
        "mean": {"tokens_per_word": mean(fertilities)},
        "mixture": {"bytes_per_token": sum(parts.values()) / tokens},
    }
