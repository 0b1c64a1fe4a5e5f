"""Text ratios: shares of a text that separate web noise from prose, with limits by language.

Word lists have the format of stopwords-json and stopwords-iso: one JSON object, language to
words.

This is the filter of ROOTS for OSCAR: github.com/bigscience-workshop/data-preparation,
preprocessing/training/01b_oscar_cleaning_and_filtering/filtering.py; Laurencon et al. (arXiv
2303.03915). Differences: a special character is white space, an ASCII digit, one of a few
letters, or in Unicode's categories of punctuation, symbols, other numbers or private use (the
original has a list). A Chinese word is a character (the original uses SentencePiece). The
perplexity is not computed.
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

REMEDY = 'set it to a JSON file such as {"en": ["the", "of"], "fr": ["le"]}, or to none'


def read_word_lists(file: str, where: str) -> dict[str, frozenset[str]]:
    """Read the words of each language in lower case; return an empty dict for "none"."""
    if file == "none":
        return {}
    try:
        with open_regular(Path(file)) as stream:
            tree = parse_json(stream.read(), finite=True)
    except (OSError, ValueError) as error:
        raise RecipeError(where, f"{file} cannot be read: {error}", REMEDY) from error
    if not isinstance(tree, dict):
        raise RecipeError(where, f"{file} is not a JSON object", REMEDY)
    lists = {}
    for language, words in tree.items():
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise RecipeError(where, f"{file}: {language!r} is not a list of words", REMEDY)
        lists[language] = frozenset(word.strip().lower() for word in words)
    return lists


NEVER = "(?!)"
# Odd, and the golden ratio's fraction of 2^64: Fibonacci hashing (Knuth, TAOCP 3, 6.4).
HASH_BASE = np.uint64(0x9E3779B97F4A7C15)
# Letters on the original's list, including Devanagari vowel signs. The published limits assume
# them.
SPECIAL_LETTERS = frozenset(
    "\xaa\xba\xf8\u0131\u026a\u02ba\u02bb\u02bc\u02c8\u02cc\u02d0\u03c0\u0413\u0647"
    "\u093e\u0940\u0947\u094d\u097d\u09be\u0e51\u30b7\u30c3\u30c4\u30f3\u30fc\u4e00\u4e0a"
    "\u58eb\ufeff\uff11"
)


class TextRatioFilter:
    """Removes links and overlong words, then removes a document if its ratios break a limit."""

    name = "text_ratios"

    def __init__(self, settings: TextRatios, *, where: str) -> None:
        self.languages = dict(settings.languages)
        self.links = re.compile("|".join(map(re.escape, settings.link_pieces)) or NEVER)
        self.stop_words = read_word_lists(settings.stop_words, f"{where}.stop_words")
        self.flagged_words = read_word_lists(settings.flagged_words, f"{where}.flagged_words")

    def __call__(self, document: Document) -> str | None:
        language = document.metadata.get("language", EVERY_OTHER)
        limits = self.languages.get(language, self.languages[EVERY_OTHER])
        document.text = clean_text(document.text, limits.longest_word, self.links)
        reason = self._broken(document.text, limits, language)
        return f"{self.name}: {reason}" if reason else None

    def _broken(self, text: str, limits: Ratios, language: str) -> str | None:
        """Return the first limit that is broken, in the published order."""
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
        if stop and (share := compute_listed_share(words, stop, limits)) < limits.stop_words:
            return f"stop words {share:.3f} < {limits.stop_words:g}"
        if (
            flagged
            and (share := compute_listed_share(words, flagged, limits)) > limits.flagged_words
        ):
            return f"flagged words {share:.4f} > {limits.flagged_words:g}"
        return None


def clean_text(text: str, longest_word: int | Literal["none"], links: re.Pattern[str]) -> str:
    """Remove links and overlong words; replace white space, also line breaks, with one space.

    A long word is kept if it is short enough without the marks around it.
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
    """Return lower-case words without the marks around them, or characters without marks."""
    if limits.words == "characters_and_pairs":
        tokens = published.load_word_tokenizer().word_tokenize(text.lower())
        return [token for token in tokens if not is_special(token[0])]
    return bare_word().findall(text.lower())


def character_repetition(text: str, size: int) -> float:
    """Return the share of the most frequent character n-grams among all n-grams.

    Of d distinct n-grams, the sqrt(d) most frequent count, except those that occur once.
    """
    ngrams = character_ngrams(text, size)
    _, counts = np.unique(ngrams, return_counts=True)
    repeated = np.sort(counts[counts > 1])[::-1]
    return int(repeated[: isqrt(len(counts))].sum()) / max(len(ngrams), 1)


def character_ngrams(text: str, size: int) -> npt.NDArray[np.uint64]:
    """Hash every span of ``size`` characters to 64 bits, as a polynomial in ``HASH_BASE``.

    Numbers sort faster than strings. With a million distinct spans, a collision occurs in one
    of thirty million texts.
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    hashes = np.zeros(max(len(points) - size + 1, 0), np.uint64)
    for first in range(size):
        hashes = hashes * HASH_BASE + points[first : first + len(hashes)]
    return hashes


def word_repetition(words: Sequence[str], size: int) -> float:
    """Return the share of word n-grams that occur more than once."""
    counts = Counter(zip(*(words[i:] for i in range(size)), strict=False))
    repeated = sum(count for count in counts.values() if count > 1)
    return repeated / max(counts.total(), 1)


def special_characters(text: str) -> float:
    """Return the share of characters that are special."""
    special = sum(count for char, count in Counter(text).items() if is_special(char))
    return special / max(len(text), 1)


def compute_listed_share(words: Sequence[str], listing: Set[str], limits: Ratios) -> float:
    """Return the share of words on a list; pairs of words may be on the list too."""
    hits = sum(word in listing for word in words)
    if limits.words != "spaces":
        between = " " if limits.words == "spaces_and_pairs" else ""
        hits += sum(between.join(pair) in listing for pair in pairwise(words))
    return min(hits / max(len(words), 1), 1.0)


@cache
def is_special(char: str) -> bool:
    """Return whether a character is no part of a word, by Unicode or the original's list."""
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
    """Return the pattern of a word without the special characters around it."""
    special = published.character_class(is_special)
    return re.compile(rf"[^{special}](?:\S*[^{special}])?")
