"""What is done to one document before it is packed: four sections, each settings or ``none``.

``except_sources`` names the sources whose documents a section leaves as they are.
"""

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from components.config.schema.types import (
    Count,
    FrozenMapping,
    OrNone,
    Place,
    Section,
    Share,
    Words,
)

Part = Annotated[float, Field(gt=0, le=1)]  # to datatrove's Gopher filters 0 is no limit at all
Positive = Annotated[float, Field(gt=0)]
# Pairs of a number of words and the largest share of the characters allowed for it.
Limit = Annotated[tuple[Count, Part], Field(strict=False)]
Limits = Annotated[tuple[Limit, ...], Field(strict=False)]
EVERY_OTHER = "default"
T = TypeVar("T")


def _has_default(value: FrozenMapping[T]) -> FrozenMapping[T]:
    if EVERY_OTHER not in value:
        raise ValueError(f"needs a key {EVERY_OTHER}, for the languages that it does not name")
    return value


ByLanguage = Annotated[FrozenMapping[T], AfterValidator(_has_default)]


class Normalise(Section):
    """One spelling for what reads the same; see :mod:`data_prep.steps`."""

    unicode_form: Literal["NFC", "NFKC"]
    strip_line_ends: bool
    remove_controls: bool


class Language(Section):
    """Name each document's language, and keep what is wanted and certain enough.

    ``minimum_score`` is by language (ISO 639-1) and ``default``; the identifier reads a
    document in ``lower_case``.
    """

    keep: Literal["all"] | Words
    minimum_score: ByLanguage[Share]
    lower_case: bool
    except_sources: Words


class GopherRepetition(Section):
    """Repeated lines, paragraphs and n-grams of words (arXiv 2112.11446, Table A1)."""

    duplicate_lines: Part
    duplicate_paragraphs: Part
    duplicate_line_characters: Part
    duplicate_paragraph_characters: Part
    top_ngrams: Limits
    duplicate_ngrams: Limits


class GopherQuality(Section):
    """Shape of words and lines (arXiv 2112.11446, Section A.1.1).

    ``stop_words`` counts those of the paper's eight English ones that must occur.
    """

    min_words: Count
    max_words: Count
    min_mean_word_characters: Positive | Literal["none"]
    max_mean_word_characters: Positive | Literal["none"]
    symbols_per_word: Positive
    bullet_lines: Part
    ellipsis_lines: Part
    alphabetic_words: Part
    stop_words: Count | Literal["none"]


class C4(Section):
    """Drop lines, then documents with few sentences left (arXiv 1910.10683, Section 2.2)."""

    min_sentences: Count
    min_words_per_line: Count
    max_word_characters: Count
    terminal_punctuation: bool
    citations: bool
    lorem_ipsum: bool
    javascript: bool
    curly_bracket: bool
    policies: bool


class FineWeb(Section):
    """Shape of lines (arXiv 2406.17557, Section 3.6)."""

    line_punctuation: Share
    short_lines: Share
    short_line_characters: Count
    duplicate_line_characters: Share
    line_breaks_per_word: Positive


class Ratios(Section):
    """The limits of one language in :class:`TextRatios`; a share is of characters or words."""

    min_words: Count
    max_words: Count
    character_ngram: Count
    character_repetition: Share
    word_ngram: Count
    word_repetition: Share
    special_characters: Share
    stop_words: Share
    flagged_words: Share
    words: Literal["spaces", "spaces_and_pairs", "characters_and_pairs"]
    longest_word: Count | Literal["none"]


class TextRatios(Section):
    """The filter of ROOTS for its OSCAR part (arXiv 2303.03915).

    The lists are JSON files, ``{"en": ["the", ...], ...}``; with ``none`` their shares are not
    looked at. Words longer than ``longest_word``, and those with one of ``link_pieces``, are
    dropped from the text first, except where ``longest_word`` is ``none``.
    """

    stop_words: Place
    flagged_words: Place
    link_pieces: Words
    languages: ByLanguage[Ratios]


class Annotations(Section):
    """What the OSCAR project wrote beside a document; one without annotations is kept."""

    min_harmful_perplexity: Positive
    max_harmful_perplexity: Positive
    categories: Words


class LineShape(Section):
    """OSCAR's quality warnings (Ungoliant), computed here; a document with any is removed.

    A line of the text is short up to ``short_line`` characters, one of its first and last
    ``edge`` (a share of the lines) below so many bytes: the two are Ungoliant's.
    """

    min_lines: Count
    short_line: Count
    short_lines: Share
    edge: Share
    short_edge_lines: Share
    non_letters: Share


class RepeatedNgrams(Section):
    """Spans of ``min_tokens`` to ``max_tokens`` tokens, ``repeats`` or more times in a row."""

    min_tokens: Count
    max_tokens: Count
    repeats: Annotated[int, Field(ge=2)]

    @field_validator("max_tokens")
    @classmethod
    def _in_order(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min_tokens", value):
            raise ValueError(f"is below min_tokens {info.data['min_tokens']}")
        return value


class Filters(Section):
    """Remove documents, in the order of these keys; the first reason is the one that counts."""

    except_sources: Words
    annotations: OrNone[Annotations]
    line_shape: OrNone[LineShape]
    repeated_ngrams: OrNone[RepeatedNgrams]
    text_ratios: OrNone[TextRatios]
    gopher_repetition: OrNone[GopherRepetition]
    gopher_quality: OrNone[GopherQuality]
    c4: OrNone[C4]
    fineweb: OrNone[FineWeb]


class PersonalData(Section):
    """What stands in the place of each kind that is found; ``none`` leaves it in the text."""

    emails: str
    ip_addresses: str
    phone_numbers: str
    ibans: str
    except_sources: Words


class DocumentSteps(Section):
    """The steps in their order."""

    normalise: OrNone[Normalise]
    language: OrNone[Language]
    filters: OrNone[Filters]
    personal_data: OrNone[PersonalData]
