"""Schema of document steps before packing: four sections, each settings or ``none``.

A section does not change documents of the sources in ``except_sources``.
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
    WordTuple,
)

PositiveFraction = Annotated[
    float, Field(gt=0, le=1)
]  # datatrove's Gopher filters read 0 as no limit
PositiveFloat = Annotated[float, Field(gt=0)]
# Pairs of a number of words and the largest share of the characters allowed for it.
Limit = Annotated[tuple[Count, PositiveFraction], Field(strict=False)]
Limits = Annotated[tuple[Limit, ...], Field(strict=False)]
EVERY_OTHER = "default"
T = TypeVar("T")


def _has_default(value: FrozenMapping[T]) -> FrozenMapping[T]:
    if EVERY_OTHER not in value:
        raise ValueError(f"missing key {EVERY_OTHER} for all other languages")
    return value


ByLanguage = Annotated[FrozenMapping[T], AfterValidator(_has_default)]


class Normalise(Section):
    """Normalisation of characters; see :mod:`data_prep.steps`."""

    unicode_form: Literal["NFC", "NFKC"]
    strip_line_ends: bool
    remove_controls: bool


class Language(Section):
    """Language identification: keep documents in the ``keep`` languages with enough score.

    ``minimum_score`` is by language (ISO 639-1); ``lower_case`` is for the identifier only.
    """

    keep: Literal["all"] | WordTuple
    minimum_score: ByLanguage[Share]
    lower_case: bool
    except_sources: WordTuple


class GopherRepetition(Section):
    """Limits of repeated lines, paragraphs and word n-grams (arXiv 2112.11446, Table A1)."""

    duplicate_lines: PositiveFraction
    duplicate_paragraphs: PositiveFraction
    duplicate_line_characters: PositiveFraction
    duplicate_paragraph_characters: PositiveFraction
    top_ngrams: Limits
    duplicate_ngrams: Limits


class GopherQuality(Section):
    """Limits of word and line statistics (arXiv 2112.11446, Section A.1.1).

    At least ``stop_words`` of the paper's eight English stop words must occur.
    """

    min_words: Count
    max_words: Count
    min_mean_word_characters: PositiveFloat | Literal["none"]
    max_mean_word_characters: PositiveFloat | Literal["none"]
    symbols_per_word: PositiveFloat
    bullet_lines: PositiveFraction
    ellipsis_lines: PositiveFraction
    alphabetic_words: PositiveFraction
    stop_words: Count | Literal["none"]


class C4(Section):
    """C4 filter: drops lines, then short documents (arXiv 1910.10683, Section 2.2)."""

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
    """FineWeb's limits of line statistics (arXiv 2406.17557, Section 3.6)."""

    line_punctuation: Share
    short_lines: Share
    short_line_characters: Count
    duplicate_line_characters: Share
    line_breaks_per_word: PositiveFloat


class Ratios(Section):
    """Limits of one language in :class:`TextRatios`, as shares of characters or words."""

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
    """Filter of ROOTS for its OSCAR part (arXiv 2303.03915).

    The word lists are JSON files, ``{"en": ["the", ...], ...}``; with ``none`` their shares are
    not checked. Words longer than ``longest_word``, and words that contain one of
    ``link_pieces``, are first removed from the text, unless ``longest_word`` is ``none``.
    """

    stop_words: Place
    flagged_words: Place
    link_pieces: WordTuple
    languages: ByLanguage[Ratios]


class Annotations(Section):
    """Filter by the OSCAR project's annotations; documents without annotations are kept."""

    min_harmful_perplexity: PositiveFloat
    max_harmful_perplexity: PositiveFloat
    categories: WordTuple


class LineShape(Section):
    """OSCAR's quality warnings (Ungoliant), computed here; a document with any is removed.

    A line is short with at most ``short_line`` characters, but among the first and last
    ``edge`` (a share of the lines) with fewer than ``short_line`` bytes. Both definitions are
    Ungoliant's.
    """

    min_lines: Count
    short_line: Count
    short_lines: Share
    edge: Share
    short_edge_lines: Share
    non_letters: Share


class RepeatedNgrams(Section):
    """Repeats of ``min_tokens`` to ``max_tokens`` tokens, at least ``repeats`` in a row."""

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
    """Document filters, in the order of these keys; the first filter that fails is counted."""

    except_sources: WordTuple
    annotations: OrNone[Annotations]
    line_shape: OrNone[LineShape]
    repeated_ngrams: OrNone[RepeatedNgrams]
    text_ratios: OrNone[TextRatios]
    gopher_repetition: OrNone[GopherRepetition]
    gopher_quality: OrNone[GopherQuality]
    c4: OrNone[C4]
    fineweb: OrNone[FineWeb]


class PersonalData(Section):
    """Replacement text for each kind of personal data; ``none`` leaves that kind unchanged."""

    emails: str
    ip_addresses: str
    phone_numbers: str
    ibans: str
    except_sources: WordTuple


class DocumentSteps(Section):
    """Document steps, in their order."""

    normalise: OrNone[Normalise]
    language: OrNone[Language]
    filters: OrNone[Filters]
    personal_data: OrNone[PersonalData]
