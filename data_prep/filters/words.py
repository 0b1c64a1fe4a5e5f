"""Words without a download, for any script, and spans of them that repeat.

Words are a stand-in for datatrove's tokenizers, each of which needs a package or a model of its
own. Approximated: languages written with spaces are cut at white space and punctuation (an
apostrophe inside a word is kept, where spaCy cuts "don't" in two); of Chinese, Japanese, Thai,
Lao, Khmer, Burmese and Tibetan every character is a word, so that limits on the length of words
mean nothing there.

Repeats: OLMoE (arXiv 2409.02060, Section 2) "removes all documents with a sequence of 32 or
more repeated n-grams, where an n-gram is any span of 1 to 13 tokens"; tokens of its tokenizer.
Here no tokenizer is trained yet. Approximated: a token is a piece of a word of at most
``PIECE_CHARACTERS``, or a run of marks, as a ruled line is one or two tokens.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import count, groupby

import numpy as np
import numpy.typing as npt
from datatrove.data import Document
from datatrove.utils.text import TERMINAL_PUNCTUATION
from datatrove.utils.word_tokenizers import WhitespaceTokenizer

from components.config.schema.document_steps import RepeatedNgrams

# Scripts without spaces between words, as ranges of The Unicode Standard's blocks.
UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
)
PICTOGRAPHS = "\U0001f000-\U0001faff"
LAST_OF_PLANE = 0xFFFF
# As far as the last mark that may end a sentence, or line break.
UP_TO_LAST_MARK = re.compile(
    rf".*[{re.escape(''.join(sorted(TERMINAL_PUNCTUATION)))}\n]", re.DOTALL
)


class Words(WhitespaceTokenizer):  # type: ignore[misc]  # datatrove carries no types
    """Cut a text into words and single punctuation marks; sentences as datatrove cuts them."""

    def word_tokenize(self, text: str) -> list[str]:
        return word_pattern().findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        """Cut behind terminal punctuation, with the inherited pattern.

        What follows the last mark is no sentence to it; on that part it takes quadratic time.
        """
        match = UP_TO_LAST_MARK.match(text)
        closed = text[: match.end() + 1] if match else ""  # with the quotation mark behind it
        sentences: list[str] = super().sent_tokenize(closed)
        return sentences


@cache
def words() -> Words:
    """Make the one tokenizer of a process: datatrove keeps results by tokenizer."""
    return Words()


@cache
def _marks() -> str:
    return character_class(lambda char: unicodedata.category(char)[0] in "PS")


@cache
def word_pattern() -> re.Pattern[str]:
    """Match a word, or one character of a script without spaces, or one mark."""
    letter = rf"[^\s{_marks()}{UNSPACED}]"
    return re.compile(rf"{letter}+(?:['\u2019]{letter}+)*|[{UNSPACED}{_marks()}]")


def character_class(belongs: Callable[[str], bool]) -> str:
    """Write the characters that belong as ranges, to stand in a pattern's brackets.

    Asked for the Basic Multilingual Plane alone, with the pictographs above it: `re` looks a
    character of that plane up in a table, and runs through every range beyond it.
    """
    ranges = [PICTOGRAPHS]
    points = range(LAST_OF_PLANE + 1)
    for inside, group in groupby(points, lambda point: belongs(chr(point))):
        if inside:
            first, *rest = group
            last = f"-{re.escape(chr(rest[-1]))}" if rest else ""
            ranges.append(f"{re.escape(chr(first))}{last}")
    return "".join(ranges)


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
    letter = rf"[^\s{_marks()}{UNSPACED}]"
    return re.compile(rf"{letter}{{1,{PIECE_CHARACTERS}}}|[{UNSPACED}]|[{_marks()}]+")
