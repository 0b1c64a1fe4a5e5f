"""Published filters behind the interface of a step, and the words that they see, in any script.

OSCAR's annotator: github.com/oscar-project/ungoliant, src/transformers (tiny.rs,
sentence_filter.rs, header.rs, noisy.rs); Abadji et al., "Towards a Cleaner Document-Oriented
Multilingual Crawled Corpus" (arXiv 2201.06642).

Repeats: OLMoE (arXiv 2409.02060, Section 2) "removes all documents with a sequence of 32 or
more repeated n-grams, where an n-gram is any span of 1 to 13 tokens"; tokens of its tokenizer.
Here no tokenizer is trained yet. Approximated: a token is a piece of a word of at most
``PIECE_CHARACTERS``, or a run of marks, as a ruled line is one or two tokens.

Words are a stand-in for datatrove's tokenizers, each of which needs a package or a model of its
own. Approximated: languages written with spaces are cut at white space and punctuation (an
apostrophe inside a word is kept, where spaCy cuts "don't" in two); of Chinese, Japanese, Thai,
Lao, Khmer, Burmese and Tibetan every character is a word, so that limits on the length of words
mean nothing there.
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


class AnnotationFilter:
    """Remove by the metadata that an OSCAR file brings with a document.

    As OpenGPT-X read it: any quality warning, a harmful-content perplexity that is too low
    (likely harmful) or too high (no text), or one of the categories of the UT1 blocklists.
    """

    name = "annotations"

    def __init__(self, settings: Annotations) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        found, settings = document.metadata, self.settings
        if warnings := found.get("quality_warnings"):
            return f"{self.name}: {' '.join(warnings)}"
        perplexity = found.get("harmful_pp")
        least, most = settings.min_harmful_perplexity, settings.max_harmful_perplexity
        if perplexity and not least <= perplexity <= most:
            return f"{self.name}: perplexity {perplexity:g}, not {least:g} to {most:g}"
        listed = set(settings.categories).intersection(found.get("categories") or ())
        return f"{self.name}: {' '.join(sorted(listed))}" if listed else None


class LineShapeFilter:
    """Compute the warnings (tiny, short_sentences, header, footer, noisy) of a bare text."""

    name = "line_shape"

    def __init__(self, settings: LineShape) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        lines = document.text.removesuffix("\n").split("\n")
        warning = self._lines(lines)
        if warning is None:
            others = sum(n for char, n in Counter(document.text).items() if not is_letter(char))
            most = self.settings.non_letters
            if others > int(len(document.text) * most):
                warning = f"noisy, {others / len(document.text):.2f} > {most:g} no letters"
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
    """Check that Unicode calls it a letter or a mark on one."""
    return unicodedata.category(char)[0] in "LM"


class PublishedFilter:
    """Ask one of datatrove's filters; what has no word in it would divide some of them by 0."""

    def __init__(self, name: str, engine: BaseFilter) -> None:
        self.name = name
        self.engine = engine

    def __call__(self, document: Document) -> str | None:
        if not document.text or document.text.isspace():
            return f"{self.name}: empty"
        keep, reason = get_filter_result(self.engine.filter(document))
        return None if keep else f"{self.name}: {reason}"


# Each filter of datatrove, and what it calls the settings of the section of that name.
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
    """Make the filter of a section of that name; ``none`` is datatrove's ``None``."""
    engine, arguments = PUBLISHED[name]
    values = {theirs: getattr(settings, ours) for ours, theirs in arguments.items()}
    given = {theirs: None if value == "none" else value for theirs, value in values.items()}
    return PublishedFilter(name, engine(**given, language=words()))
