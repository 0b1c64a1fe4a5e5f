"""datatrove's filters, behind the interface of a step.

They decide; here are only the names of their settings and the words they count.
"""

from typing import Literal

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter, get_filter_result

from components.spec.document_steps import C4, FineWeb, GopherQuality, GopherRepetition
from data_prep.filters.words import words


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


def gopher_repetition(settings: GopherRepetition) -> PublishedFilter:
    """Remove what repeats its lines, paragraphs or n-grams."""
    engine = GopherRepetitionFilter(
        dup_line_frac=settings.duplicate_lines,
        dup_para_frac=settings.duplicate_paragraphs,
        dup_line_char_frac=settings.duplicate_line_characters,
        dup_para_char_frac=settings.duplicate_paragraph_characters,
        top_n_grams=settings.top_ngrams,
        dup_n_grams=settings.duplicate_ngrams,
        language=words(),
    )
    return PublishedFilter("gopher_repetition", engine)


def gopher_quality(settings: GopherQuality) -> PublishedFilter:
    """Remove what is not shaped like prose."""
    engine = GopherQualityFilter(
        min_doc_words=settings.min_words,
        max_doc_words=settings.max_words,
        min_avg_word_length=_or_none(settings.min_mean_word_characters),
        max_avg_word_length=_or_none(settings.max_mean_word_characters),
        max_symbol_word_ratio=settings.symbols_per_word,
        max_bullet_lines_ratio=settings.bullet_lines,
        max_ellipsis_lines_ratio=settings.ellipsis_lines,
        max_non_alpha_words_ratio=settings.alphabetic_words,
        min_stop_words=_or_none(settings.stop_words),
        language=words(),
    )
    return PublishedFilter("gopher_quality", engine)


def c4(settings: C4) -> PublishedFilter:
    """Drop lines that are no sentences, then remove documents with too few left."""
    engine = C4QualityFilter(
        min_num_sentences=settings.min_sentences,
        min_words_per_line=settings.min_words_per_line,
        max_word_length=settings.max_word_characters,
        filter_no_terminal_punct=settings.terminal_punctuation,
        remove_citations=settings.citations,
        filter_lorem_ipsum=settings.lorem_ipsum,
        filter_javascript=settings.javascript,
        filter_curly_bracket=settings.curly_bracket,
        filter_policy=settings.policies,
        language=words(),
    )
    return PublishedFilter("c4", engine)


def fineweb(settings: FineWeb) -> PublishedFilter:
    """Remove lists, and lines without an end or many times over."""
    engine = FineWebQualityFilter(
        line_punct_thr=settings.line_punctuation,
        short_line_thr=settings.short_lines,
        short_line_length=settings.short_line_characters,
        char_duplicates_ratio=settings.duplicate_line_characters,
        new_line_ratio=settings.line_breaks_per_word,
        language=words(),
    )
    return PublishedFilter("fineweb", engine)


def _or_none(limit: float | Literal["none"]) -> float | None:
    return None if limit == "none" else limit
