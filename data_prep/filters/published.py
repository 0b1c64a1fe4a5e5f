"""Published filters as document steps, and a word tokenizer for them that covers all scripts.

OSCAR's annotator: github.com/oscar-project/ungoliant, src/transformers (tiny.rs,
sentence_filter.rs, header.rs, noisy.rs); Abadji et al., "Towards a Cleaner Document-Oriented
Multilingual Crawled Corpus" (arXiv 2201.06642).

Repeats: OLMoE (arXiv 2409.02060, Section 2) "removes all documents with a sequence of 32 or
more repeated n-grams, where an n-gram is any span of 1 to 13 tokens", with its own tokenizer.
Here no tokenizer is trained yet: as an approximation, a token is a piece of a word of at most
``PIECE_CHARACTERS`` characters, or a run of marks, because a ruled line is one or two tokens.

datatrove's tokenizers each need a package or a model. The approximation here cuts languages
with spaces at white space and punctuation (an apostrophe inside a word is kept, while spaCy
cuts "don't" in two). In Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan every
character is a word, so limits on word length have no meaning there.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count, groupby

import numpy as np
import numpy.typing as npt
from datatrove.data import Document
from datatrove.pipeline import filters as datatroves
from datatrove.pipeline.filters.base_filter import BaseFilter, get_filter_result
from datatrove.utils.text import TERMINAL_PUNCTUATION
from datatrove.utils.word_tokenizers import WhitespaceTokenizer

from components.config.schema.document_steps import Annotations, LineShape, RepeatedNgrams
from components.config.schema.types import Section

# Scripts without spaces between words, as ranges of Unicode blocks.
UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
)
PICTOGRAPHS = "\U0001f000-\U0001faff"
LAST_OF_PLANE = 0xFFFF
# Everything up to the last mark that may end a sentence, or the last line break.
UP_TO_LAST_MARK = re.compile(
    rf".*[{re.escape(''.join(sorted(TERMINAL_PUNCTUATION)))}\n]", re.DOTALL
)


class Words(WhitespaceTokenizer):  # type: ignore[misc]  # datatrove has no type hints
    """Word tokenizer: words and single punctuation marks; sentences as datatrove cuts them."""

    def word_tokenize(self, text: str) -> list[str]:
        return word_pattern().findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        """Cut after terminal punctuation, with the inherited pattern.

        Text after the last mark is not a sentence. It is dropped first, because the pattern
        takes quadratic time on it.
        """
        match = UP_TO_LAST_MARK.match(text)
        closed = text[: match.end() + 1] if match else ""  # with a quotation mark after it
        sentences: list[str] = super().sent_tokenize(closed)
        return sentences


@cache
def load_word_tokenizer() -> Words:
    """Return the tokenizer, one per process, because datatrove caches results by tokenizer."""
    return Words()


@cache
def _marks() -> str:
    return character_class(lambda char: unicodedata.category(char)[0] in "PS")


@cache
def word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word, of one character of an unspaced script, or of one mark."""
    letter = rf"[^\s{_marks()}{UNSPACED}]"
    return re.compile(rf"{letter}+(?:['\u2019]{letter}+)*|[{UNSPACED}{_marks()}]")


def character_class(belongs: Callable[[str], bool]) -> str:
    """Return the characters for which ``belongs`` is true as ranges for a regex class.

    Only the Basic Multilingual Plane and the pictographs above it are covered: `re` looks up a
    character of that plane in a table, but searches all ranges beyond it one by one.
    """
    ranges = [PICTOGRAPHS]
    points = range(LAST_OF_PLANE + 1)
    for inside, group in groupby(points, lambda point: belongs(chr(point))):
        if inside:
            first, *rest = group
            last = f"-{re.escape(chr(rest[-1]))}" if rest else ""
            ranges.append(f"{re.escape(chr(first))}{last}")
    return "".join(ranges)


# Longer than most tokens, so a repeat found here is also one for a trained tokenizer.
PIECE_CHARACTERS = 8


class RepeatedNgramFilter:
    """Removes a document in which one n-gram repeats too often in a row."""

    name = "repeated_ngrams"

    def __init__(self, settings: RepeatedNgrams) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        settings = self.settings
        tokens = token_numbers(document.text)
        longest = min(settings.max_tokens, len(tokens) // settings.repeats)
        for size in range(settings.min_tokens, longest + 1):
            repeats = times_in_a_row(tokens, size)
            if repeats >= settings.repeats:
                return f"{self.name}: {size}-gram {repeats} times > {settings.repeats - 1}"
        return None


def times_in_a_row(tokens: npt.NDArray[np.int64], size: int) -> int:
    """Return the most times in a row that a span of ``size`` tokens occurs; 1 is no repeat.

    A run of tokens that each equal the token ``size`` before is a repeated span.
    """
    different = np.flatnonzero(tokens[size:] != tokens[:-size])
    edges = np.concatenate(([-1], different, [max(len(tokens) - size, 0)]))
    return 1 + (int(np.diff(edges).max()) - 1) // size


def token_numbers(text: str) -> npt.NDArray[np.int64]:
    """Number the tokens of ``text``; equal tokens get equal numbers."""
    tokens = _pieces().findall(text)
    first_places: dict[str, int] = {}
    return np.fromiter(map(first_places.setdefault, tokens, count()), np.int64, len(tokens))


@cache
def _pieces() -> re.Pattern[str]:
    letter = rf"[^\s{_marks()}{UNSPACED}]"
    return re.compile(rf"{letter}{{1,{PIECE_CHARACTERS}}}|[{UNSPACED}]|[{_marks()}]+")


class AnnotationFilter:
    """Filter by the metadata of a document from an OSCAR file.

    As OpenGPT-X used it, it removes a document with any quality warning, a harmful-content
    perplexity that is too low (likely harmful) or too high (not prose), or a given category of
    the UT1 blocklists.
    """

    name = "annotations"

    def __init__(self, settings: Annotations) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        metadata, settings = document.metadata, self.settings
        if warnings := metadata.get("quality_warnings"):
            return f"{self.name}: {' '.join(warnings)}"
        perplexity = metadata.get("harmful_pp")
        least, most = settings.min_harmful_perplexity, settings.max_harmful_perplexity
        if perplexity and not least <= perplexity <= most:
            return f"{self.name}: perplexity {perplexity:g}, not {least:g} to {most:g}"
        listed = set(settings.categories).intersection(metadata.get("categories") or ())
        return f"{self.name}: {' '.join(sorted(listed))}" if listed else None


class LineShapeFilter:
    """Filter by the annotator's warnings (tiny, short_sentences, header, footer, noisy)."""

    name = "line_shape"

    def __init__(self, settings: LineShape) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        lines = document.text.removesuffix("\n").split("\n")
        warning = self._lines(lines)
        if warning is None:
            others = sum(n for char, n in Counter(document.text).items() if not is_letter(char))
            limit = self.settings.non_letters
            if others > int(len(document.text) * limit):
                warning = f"noisy, {others / len(document.text):.2f} > {limit:g} no letters"
        return f"{self.name}: {warning}" if warning else None

    def _lines(self, lines: Sequence[str]) -> str | None:
        settings = self.settings
        if len(lines) < settings.min_lines:
            return f"tiny, {len(lines)} < {settings.min_lines} lines"
        short = sum(len(line) <= settings.short_line for line in lines)
        if short > int(len(lines) * settings.short_lines):
            return f"short_sentences, {short} of {len(lines)} lines"
        edge = int(len(lines) * settings.edge)
        for warning, part in (("header", lines[:edge]), ("footer", lines[len(lines) - edge :])):
            short = sum(len(line.encode()) < settings.short_line for line in part)
            if short > int(edge * settings.short_edge_lines):
                return f"{warning}, {short} of {edge} lines short"
        return None


@cache
def is_letter(char: str) -> bool:
    """Return whether a character is a letter or a combining mark in Unicode."""
    return unicodedata.category(char)[0] in "LM"


class PublishedFilter:
    """A filter of datatrove as a step; empty text is removed first: it could divide by 0."""

    def __init__(self, name: str, engine: BaseFilter) -> None:
        self.name = name
        self.engine = engine

    def __call__(self, document: Document) -> str | None:
        if not document.text or document.text.isspace():
            return f"{self.name}: empty"
        keep, reason = get_filter_result(self.engine.filter(document))
        return None if keep else f"{self.name}: {reason}"


# Each filter of datatrove, and its names for the settings of our section of the same name.
PUBLISHED: Mapping[str, tuple[type[BaseFilter], Mapping[str, str]]] = {
    "gopher_repetition": (
        datatroves.GopherRepetitionFilter,
        {
            "duplicate_lines": "dup_line_frac",
            "duplicate_paragraphs": "dup_para_frac",
            "duplicate_line_characters": "dup_line_char_frac",
            "duplicate_paragraph_characters": "dup_para_char_frac",
            "top_ngrams": "top_n_grams",
            "duplicate_ngrams": "dup_n_grams",
        },
    ),
    "gopher_quality": (
        datatroves.GopherQualityFilter,
        {
            "min_words": "min_doc_words",
            "max_words": "max_doc_words",
            "min_mean_word_characters": "min_avg_word_length",
            "max_mean_word_characters": "max_avg_word_length",
            "symbols_per_word": "max_symbol_word_ratio",
            "bullet_lines": "max_bullet_lines_ratio",
            "ellipsis_lines": "max_ellipsis_lines_ratio",
            "alphabetic_words": "max_non_alpha_words_ratio",
            "stop_words": "min_stop_words",
        },
    ),
    "c4": (
        datatroves.C4QualityFilter,
        {
            "min_sentences": "min_num_sentences",
            "min_words_per_line": "min_words_per_line",
            "max_word_characters": "max_word_length",
            "terminal_punctuation": "filter_no_terminal_punct",
            "citations": "remove_citations",
            "lorem_ipsum": "filter_lorem_ipsum",
            "javascript": "filter_javascript",
            "curly_bracket": "filter_curly_bracket",
            "policies": "filter_policy",
        },
    ),
    "fineweb": (
        datatroves.FineWebQualityFilter,
        {
            "line_punctuation": "line_punct_thr",
            "short_lines": "short_line_thr",
            "short_line_characters": "short_line_length",
            "duplicate_line_characters": "char_duplicates_ratio",
            "line_breaks_per_word": "new_line_ratio",
        },
    ),
}


def published_filter(name: str, settings: Section) -> PublishedFilter:
    """Build the filter of a section; the setting "none" becomes datatrove's ``None``."""
    engine, arguments = PUBLISHED[name]
    values = {theirs: getattr(settings, ours) for ours, theirs in arguments.items()}
    options = {theirs: None if value == "none" else value for theirs, value in values.items()}
    return PublishedFilter(name, engine(**options, language=load_word_tokenizer()))
