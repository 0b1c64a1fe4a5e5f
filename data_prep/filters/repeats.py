"""Spans that follow themselves again and again: what makes the loss of a run spike.

OLMoE (arXiv 2409.02060, Section 2) "removes all documents with a sequence of 32 or more
repeated n-grams, where an n-gram is any span of 1 to 13 tokens"; tokens of its tokenizer.
Here no tokenizer is trained yet. Approximated: a token is a piece of a word of at most
``PIECE_CHARACTERS``, or a run of marks, as a ruled line is one or two tokens.
"""

import re
import unicodedata
from functools import cache
from itertools import count

import numpy as np
import numpy.typing as npt
from datatrove.data import Document

from components.spec.document_steps import RepeatedNgrams
from data_prep.filters.words import UNSPACED, character_class

# Longer than most tokens: what is found here is found with a trained tokenizer, too.
PIECE_CHARACTERS = 8


class RepeatedNgramFilter:
    """Remove a document in which one span follows itself too often."""

    name = "repeated_ngrams"

    def __init__(self, settings: RepeatedNgrams) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        most = self.settings
        tokens = token_numbers(document.text)
        longest = min(most.max_tokens, len(tokens) // most.repeats)
        for size in range(most.min_tokens, longest + 1):
            repeats = times_in_a_row(tokens, size)
            if repeats >= most.repeats:
                return f"{self.name}: {size}-gram {repeats} times > {most.repeats - 1}"
        return None


def times_in_a_row(tokens: npt.NDArray[np.int64], size: int) -> int:
    """Count how often some span of ``size`` tokens stands in a row, at most; 1 is once.

    Tokens in a row that equal the one ``size`` before them are spans that repeat.
    """
    different = np.flatnonzero(tokens[size:] != tokens[:-size])
    edges = np.concatenate(([-1], different, [max(len(tokens) - size, 0)]))
    return 1 + (int(np.diff(edges).max()) - 1) // size


def token_numbers(text: str) -> npt.NDArray[np.int64]:
    """Number the tokens of ``text``: equal tokens, equal numbers."""
    tokens = _pieces().findall(text)
    first_places: dict[str, int] = {}
    return np.fromiter(map(first_places.setdefault, tokens, count()), np.int64, len(tokens))


@cache
def _pieces() -> re.Pattern[str]:
    marks = character_class(lambda char: unicodedata.category(char)[0] in "PS")
    letter = rf"[^\s{marks}{UNSPACED}]"
    return re.compile(rf"{letter}{{1,{PIECE_CHARACTERS}}}|[{UNSPACED}]|[{marks}]+")
