"""Shares of a text that tell web noise from prose; limits and word lists for each language.

Word lists have the format of stopwords-json and stopwords-iso: one JSON object, language to
words.

The filter of ROOTS for OSCAR: github.com/bigscience-workshop/data-preparation,
preprocessing/training/01b_oscar_cleaning_and_filtering/filtering.py; Laurencon et al. (arXiv
2303.03915). Approximated: a special character is white space, an ASCII digit, or what Unicode
calls punctuation, a symbol, a fraction or exponent, or private, and a few letters (there, a
list); a Chinese word is a character (there, SentencePiece's). Left out: the perplexity.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence, Set
from functools import cache
from itertools import pairwise
from math import isqrt
from pathlib import Path
from string import digits
from typing import Literal

import numpy as np
import numpy.typing as npt
from datatrove.data import Document

from components.config.schema.document_steps import EVERY_OTHER, Ratios, TextRatios
from components.errors import RecipeError
from components.json_file import open_regular, parse_json
from data_prep.filters import published

REMEDY = 'give a JSON file, as {"en": ["the", "of"], "fr": ["le"]}, or none'


def read_word_lists(file: str, where: str) -> dict[str, frozenset[str]]:
    """Read the words of each language in lower case; nothing for ``none``.

    Raises:
        RecipeError: the file is missing, no JSON, or of another shape.
    """
    if file == "none":
        return {}
    try:
        with open_regular(Path(file)) as stream:
            tree = parse_json(stream.read(), finite=True)
    except (OSError, ValueError) as error:
        raise RecipeError(where, f"{file} cannot be read: {error}", REMEDY) from error
    if not isinstance(tree, dict):
        raise RecipeError(where, f"{file} holds no object", REMEDY)
    lists = {}
    for language, words in tree.items():
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise RecipeError(where, f"{file} has no list of words under {language!r}", REMEDY)
        lists[language] = frozenset(word.strip().lower() for word in words)
    return lists


NEVER = "(?!)"
# Odd, and the golden ratio's fraction of 2^64: Fibonacci hashing (Knuth, TAOCP 3, 6.4).
HASH_BASE = np.uint64(0x9E3779B97F4A7C15)
# Letters that are on the original's list, Devanagari's vowel signs among them: the limits were
# set with them.
SPECIAL_LETTERS = frozenset(
    "\xaa\xba\xf8\u0131\u026a\u02ba\u02bb\u02bc\u02c8\u02cc\u02d0\u03c0\u0413\u0647"
    "\u093e\u0940\u0947\u094d\u097d\u09be\u0e51\u30b7\u30c3\u30c4\u30f3\u30fc\u4e00\u4e0a"
    "\u58eb\ufeff\uff11"
)


class TextRatioFilter:
    """Drop words that are links or glued together, then remove a document by its shares.

    Raises:
        RecipeError: a word list cannot be read.
    """

    name = "text_ratios"

    def __init__(self, settings: TextRatios, *, where: str) -> None:
        self.languages = dict(settings.languages)
        self.links = re.compile("|".join(map(re.escape, settings.link_pieces)) or NEVER)
        self.stop_words = read_word_lists(settings.stop_words, f"{where}.stop_words")
        self.flagged_words = read_word_lists(settings.flagged_words, f"{where}.flagged_words")

    def __call__(self, document: Document) -> str | None:
        language = document.metadata.get("language", EVERY_OTHER)
        limits = self.languages.get(language, self.languages[EVERY_OTHER])
        document.text = clean(document.text, limits.longest_word, self.links)
        reason = self._broken(document.text, limits, language)
        return f"{self.name}: {reason}" if reason else None

    def _broken(self, text: str, limits: Ratios, language: str) -> str | None:
        """Name the first limit that is broken, in the published order."""
        words = cut_words(text, limits)
        if not limits.min_words <= len(words) <= limits.max_words:
            return f"{len(words)} words, not {limits.min_words} to {limits.max_words}"
        share = character_repetition(text, limits.character_ngram)
        if share > limits.character_repetition:
            return f"character repetition {share:.3f} > {limits.character_repetition:g}"
        share = word_repetition(words, limits.word_ngram)
        if share > limits.word_repetition:
            return f"word repetition {share:.3f} > {limits.word_repetition:g}"
        share = special_characters(text)
        if share > limits.special_characters:
            return f"special characters {share:.3f} > {limits.special_characters:g}"
        stop, flagged = self.stop_words.get(language), self.flagged_words.get(language)
        if stop and (share := listed(words, stop, limits)) < limits.stop_words:
            return f"stop words {share:.3f} < {limits.stop_words:g}"
        if flagged and (share := listed(words, flagged, limits)) > limits.flagged_words:
            return f"flagged words {share:.4f} > {limits.flagged_words:g}"
        return None


def clean(text: str, longest_word: int | Literal["none"], links: re.Pattern[str]) -> str:
    """Drop links and words that are too long; every run of white space becomes one space.

    Line breaks go with the rest, as in the original. A long word stays if it is short enough
    without the marks around it.
    """
    words = text.split()
    if longest_word != "none":
        words = [word for word in words if _stays(word, longest_word, links)]
    return " ".join(words)


def _stays(word: str, longest_word: int, links: re.Pattern[str]) -> bool:
    if len(word) <= longest_word and not links.search(word):
        return True
    match = bare_word().search(word)
    bare = match.group() if match else ""
    return not links.search(bare) and (
        len(word) <= longest_word or 0 < len(bare) <= longest_word
    )


def cut_words(text: str, limits: Ratios) -> list[str]:
    """Cut lower-case words without the marks around them; or characters, without the marks."""
    if limits.words == "characters_and_pairs":
        tokens = published.words().word_tokenize(text.lower())
        return [token for token in tokens if not is_special(token[0])]
    return bare_word().findall(text.lower())


def character_repetition(text: str, size: int) -> float:
    """Compute the share that the most frequent n-grams of characters have of all n-grams.

    The most frequent are as many as the root of the number of distinct ones, and none that
    occurs once.
    """
    ngrams = character_ngrams(text, size)
    _, counts = np.unique(ngrams, return_counts=True)
    repeated = np.sort(counts[counts > 1])[::-1]
    return int(repeated[: isqrt(len(counts))].sum()) / max(len(ngrams), 1)


def character_ngrams(text: str, size: int) -> npt.NDArray[np.uint64]:
    """Hash every span of ``size`` characters to 64 bits: a polynomial in ``HASH_BASE``.

    Numbers sort faster than strings; a million different spans share a hash by chance once in
    thirty million texts.
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    hashes = np.zeros(max(len(points) - size + 1, 0), np.uint64)
    for first in range(size):
        hashes = hashes * HASH_BASE + points[first : first + len(hashes)]
    return hashes


def word_repetition(words: Sequence[str], size: int) -> float:
    """Compute the share of the n-grams of words that occur more than once."""
    counts = Counter(zip(*(words[i:] for i in range(size)), strict=False))
    repeated = sum(count for count in counts.values() if count > 1)
    return repeated / max(counts.total(), 1)


def special_characters(text: str) -> float:
    """Compute the share of the characters that are special."""
    special = sum(count for char, count in Counter(text).items() if is_special(char))
    return special / max(len(text), 1)


def listed(words: Sequence[str], listing: Set[str], limits: Ratios) -> float:
    """Compute the share of the words that are on a list; pairs of words may be on it, too."""
    found = sum(word in listing for word in words)
    if limits.words != "spaces":
        between = " " if limits.words == "spaces_and_pairs" else ""
        found += sum(between.join(pair) in listing for pair in pairwise(words))
    return min(found / max(len(words), 1), 1.0)


@cache
def is_special(char: str) -> bool:
    """Check that a character is no part of a word, by Unicode or the original's list."""
    category = unicodedata.category(char)
    return (
        char.isspace()
        or char in digits
        or char in SPECIAL_LETTERS
        or category[0] in "PSZ"
        or category in {"No", "Co"}
    )


@cache
def bare_word() -> re.Pattern[str]:
    """Match what is left of a word in spaces when the special characters around it are off."""
    special = published.character_class(is_special)
    return re.compile(rf"[^{special}](?:\S*[^{special}])?")
