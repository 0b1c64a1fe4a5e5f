"""Near duplicates of known similarity, planted among real documents."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SHORTEST_WORDS, LONGEST_WORDS = 100, 2_000
PAIRS = 2_000


def plant(texts: Sequence[str], ngram: int) -> tuple[list[str], list[float]]:
    """Copy some texts with words altered, more or less of them; give each copy's similarity."""
    chosen = [
        index
        for index, text in enumerate(texts)
        if SHORTEST_WORDS <= len(text.split()) <= LONGEST_WORDS
    ]
    chosen = chosen[:: max(len(chosen) // PAIRS, 1)][:PAIRS]
    copies, alike = [], []
    for number, index in enumerate(chosen):
        words = len(texts[index].split())
        changes = 1 + int(words * (number % 20) / 20 / (2 * ngram))
        copy = altered(texts[index], changes, seed=number)
        copies.append(copy)
        alike.append(similarity(texts[index], copy, ngram))
    return copies, alike


def similarity(one: str, other: str, ngram: int) -> float:
    """Compare two texts by the sets of their runs of words, cut at white space."""
    runs = [
        {tuple(words[i : i + ngram]) for i in range(max(len(words) - ngram + 1, 1))}
        for words in (one.split(), other.split())
    ]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def altered(text: str, changes: int, seed: int) -> str:
    """Replace some words of a text by random letters."""
    draw = np.random.default_rng(seed)
    words = text.split()
    for place in draw.choice(len(words), min(changes, len(words)), replace=False):
        words[place] = "".join(map(chr, draw.integers(97, 123, size=7)))
    return " ".join(words)


def write_texts(path: Path, texts: Sequence[str]) -> None:
    """Write a JSONL file."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
