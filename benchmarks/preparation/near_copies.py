"""Copies of documents with changed words, as near duplicates of known similarity."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

SHORTEST_WORDS, LONGEST_WORDS = 100, 2_000
PAIRS = 2_000


def make_copies(texts: Sequence[str], ngram: int) -> tuple[list[str], list[float]]:
    """Copy some texts and change some words; return the copies and their similarities."""
    selected = [
        index
        for index, text in enumerate(texts)
        if SHORTEST_WORDS <= len(text.split()) <= LONGEST_WORDS
    ]
    selected = selected[:: max(len(selected) // PAIRS, 1)][:PAIRS]
    copies, similarities = [], []
    for number, index in enumerate(selected):
        words = len(texts[index].split())
        changes = 1 + int(words * (number % 20) / 20 / (2 * ngram))
        copy = change_words(texts[index], changes, seed=number)
        copies.append(copy)
        similarities.append(compute_similarity(texts[index], copy, ngram))
    return copies, similarities


def compute_similarity(text: str, other: str, ngram: int) -> float:
    """Return the Jaccard similarity of the word n-grams of two texts."""
    ngrams = [
        {tuple(words[i : i + ngram]) for i in range(max(len(words) - ngram + 1, 1))}
        for words in (text.split(), other.split())
    ]
    return len(ngrams[0] & ngrams[1]) / len(ngrams[0] | ngrams[1])


def change_words(text: str, changes: int, seed: int) -> str:
    """Replace some words of a text by random letters."""
    generator = np.random.default_rng(seed)
    words = text.split()
    for index in generator.choice(len(words), min(changes, len(words)), replace=False):
        words[index] = "".join(map(chr, generator.integers(97, 123, size=7)))
    return " ".join(words)


def write_texts(path: Path, texts: Iterable[str]) -> None:
    """Write a JSONL file."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
