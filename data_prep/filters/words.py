"""Words without a download, for any script.

A stand-in for datatrove's tokenizers, each of which needs a package or a model of its own.
Approximated: languages written with spaces are cut at white space and punctuation (an
apostrophe inside a word is kept, where spaCy cuts "don't" in two); of Chinese, Japanese, Thai,
Lao, Khmer, Burmese and Tibetan every character is a word, so that limits on the length of words
mean nothing there.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache

from datatrove.utils.text import TERMINAL_PUNCTUATION
from datatrove.utils.word_tokenizers import WhitespaceTokenizer

# Scripts without spaces between words, as ranges of The Unicode Standard's blocks.
UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
)
PICTOGRAPHS = "\U0001f000-\U0001faff"
LAST_OF_PLANE = 0xFFFF


class Words(WhitespaceTokenizer):  # type: ignore[misc]  # datatrove carries no types
    """Cut a text into words and single punctuation marks; sentences as datatrove cuts them."""

    def word_tokenize(self, text: str) -> list[str]:
        return word_pattern().findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        """Cut behind terminal punctuation, with the inherited pattern.

        What follows the last mark is no sentence to it; on that part it takes quadratic time.
        """
        match = up_to_last_mark().match(text)
        closed = text[: match.end() + 1] if match else ""  # with the quotation mark behind it
        sentences: list[str] = super().sent_tokenize(closed)
        return sentences


@cache
def words() -> Words:
    """Make the one tokenizer of a process: datatrove keeps results by tokenizer."""
    return Words()


@cache
def up_to_last_mark() -> re.Pattern[str]:
    """Match a text as far as the last mark that may end a sentence, or line break."""
    marks = re.escape("".join(sorted(TERMINAL_PUNCTUATION)))
    return re.compile(rf".*[{marks}\n]", re.DOTALL)


@cache
def word_pattern() -> re.Pattern[str]:
    """Match a word, or one character of a script without spaces, or one mark."""
    marks = character_class(lambda char: unicodedata.category(char)[0] in "PS")
    letter = rf"[^\s{marks}{UNSPACED}]"
    return re.compile(rf"{letter}+(?:['\u2019]{letter}+)*|[{UNSPACED}{marks}]")


def character_class(belongs: Callable[[str], bool]) -> str:
    """Write the characters that belong as ranges, to stand in a pattern's brackets.

    Asked for the Basic Multilingual Plane alone, with the pictographs above it: `re` looks a
    character of that plane up in a table, and runs through every range beyond it.
    """
    return PICTOGRAPHS + "".join(
        re.escape(chr(first)) + ("-" + re.escape(chr(last)) if last > first else "")
        for first, last in _ranges(belongs)
    )


def _ranges(belongs: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    first = None
    for point in range(LAST_OF_PLANE + 2):
        inside = point <= LAST_OF_PLANE and belongs(chr(point))
        if inside and first is None:
            first = point
        elif not inside and first is not None:
            yield first, point - 1
            first = None
