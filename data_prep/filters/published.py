"""datatrove's filters, behind the interface of a step.

They decide; here are only the names of their settings and the words they count.
"""

from collections.abc import Mapping

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter, get_filter_result

from components.spec.section import Section
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
