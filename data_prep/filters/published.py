"""Published filters behind the interface of a step: datatrove's, and OSCAR's annotator.

Rules and limits: github.com/oscar-project/ungoliant, src/transformers (tiny.rs,
sentence_filter.rs, header.rs, noisy.rs); Abadji et al., "Towards a Cleaner Document-Oriented
Multilingual Crawled Corpus" (arXiv 2201.06642).

datatrove's filters decide; here are only the names of their settings and their words.
"""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter, get_filter_result

from components.config.schema.document_steps import Annotations, LineShape
from components.config.schema.types import Section
from data_prep.filters.words import words


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
        GopherRepetitionFilter,
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
        GopherQualityFilter,
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
        C4QualityFilter,
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
        FineWebQualityFilter,
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
