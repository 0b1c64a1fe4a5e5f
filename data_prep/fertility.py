"""Fertility of a tokenizer: tokens per word, and bytes per token.

Fertility is tokens per word (Rust et al. 2021, "How Good is Your Tokenizer?", arXiv 2012.15613,
Section 3.2). Words are separated by white space, so bytes per token is more informative for
text without spaces.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from components.config.schema.data import Source
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError
from data_prep.sources import choose_split, measure_groups, open_source
from data_prep.tokenise import training_texts

MEASURED_DOCUMENTS, MEASURED_CHARACTERS = 200, 2_000  # per source, per document
EVERY = "all"  # train on every source

Counts = dict[str, float]


def count_tokens(texts: Sequence[str], tokenizer: Tokenizer) -> Counts:
    """Count documents, tokens, words and bytes, tokens per word, and bytes per token."""
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
    """Train ``tokenizer`` into ``folder`` and measure it on each source's held-out text.

    It is trained on all sources, or only on the source ``trained_on``, with the same number of
    ``sample_bytes`` in total. ``fertility`` has the counts of each source, ``mean`` weighs all
    sources equally, ``mixture`` weighs them by ``shares`` (shares of the text's bytes).
    """
    if trained_on not in {EVERY, *sources}:
        problem = f"unknown source {trained_on!r}"
        known = ", ".join([EVERY, *sorted(sources)])
        raise RecipeError("trained_on", problem, f"set it to one of {known}")
    chosen = [*sources] if trained_on == EVERY else [trained_on]
    opened = {name: open_source(name, source) for name, source in sorted(sources.items())}
    splits = {
        name: choose_split(measure_groups(source.iter_documents()), held_out_fraction)
        for name, source in opened.items()
    }
    documents = {
        name: source.iter_documents() for name, source in opened.items() if name in chosen
    }
    bytes_per_source = (
        sample_bytes if sample_bytes == "all" else sample_bytes * len(sources) // len(chosen)
    )
    tokenizer.train_on_texts(training_texts(documents, splits, bytes_per_source), folder)
    counts = dict[str, Counts]()
    for name, text_source in opened.items():
        texts = filter(None, map(splits[name].held_out_text, text_source.iter_documents()))
        sample = [text[:MEASURED_CHARACTERS] for text in islice(texts, MEASURED_DOCUMENTS)]
        counts[name] = count_tokens(sample, tokenizer)
    parts = {name: shares.get(name, 0.0) for name in counts}
    if not any(parts.values()):
        parts = dict.fromkeys(counts, 1.0)
    tokens = sum(share / counts[name]["bytes_per_token"] for name, share in parts.items())
    return {
        "trained_on": trained_on,
        "fertility": counts,
        "mean": {
            "tokens_per_word": mean(count["tokens_per_word"] for count in counts.values())
        },
        "mixture": {"bytes_per_token": sum(parts.values()) / tokens},
    }
