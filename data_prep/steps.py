"""What is done to one document: normalise, identify, filter, replace personal data.

A step is made of settings alone, so that a process can hand it to another; models and patterns
are loaded where they are first used.
"""

from collections.abc import Iterator
from typing import Literal, Protocol

from datatrove.data import Document

from components.spec.document_steps import Filters, Language, Normalise, PersonalData
from data_prep.filters.oscar import AnnotationFilter, LineShapeFilter
from data_prep.filters.published import PUBLISHED, published_filter
from data_prep.filters.repeats import RepeatedNgramFilter
from data_prep.filters.text_ratios import TextRatioFilter
from data_prep.language import LanguageStep
from data_prep.normalise import NormaliseStep
from data_prep.personal_data import PersonalDataStep


class DocumentStep(Protocol):
    """Change ``document.text`` and ``document.metadata``, or give the reason to remove it.

    The part of the reason before its colon is what is counted; ``None`` keeps the document.
    """

    @property
    def name(self) -> str: ...
    def __call__(self, document: Document) -> str | None: ...


class Settings(Protocol):
    """The four sections of a recipe."""

    @property
    def normalise(self) -> Normalise | Literal["none"]: ...
    @property
    def language(self) -> Language | Literal["none"]: ...
    @property
    def filters(self) -> Filters | Literal["none"]: ...
    @property
    def personal_data(self) -> PersonalData | Literal["none"]: ...


def build_steps(settings: Settings, *, source: str, where: str) -> list[DocumentStep]:
    """List the steps for one source; ``where`` is the YAML path of the sections.

    Raises:
        RecipeError: a language that cannot be told, or a word list that cannot be read.
    """
    steps: list[DocumentStep] = []
    normalise, language = settings.normalise, settings.language
    filters, personal_data = settings.filters, settings.personal_data
    if normalise != "none":
        steps.append(NormaliseStep(normalise))
    if language != "none" and source not in language.except_sources:
        steps.append(LanguageStep(language, where=f"{where}.language"))
    if filters != "none" and source not in filters.except_sources:
        steps += _filters(filters, where=f"{where}.filters")
    if personal_data != "none" and source not in personal_data.except_sources:
        steps.append(PersonalDataStep(personal_data))
    return steps


def _filters(settings: Filters, *, where: str) -> Iterator[DocumentStep]:
    """Give those that are set, in the order of the section's keys."""
    if settings.annotations != "none":
        yield AnnotationFilter(settings.annotations)
    if settings.line_shape != "none":
        yield LineShapeFilter(settings.line_shape)
    if settings.repeated_ngrams != "none":
        yield RepeatedNgramFilter(settings.repeated_ngrams)
    if settings.text_ratios != "none":
        yield TextRatioFilter(settings.text_ratios, where=f"{where}.text_ratios")
    for name in PUBLISHED:
        section = getattr(settings, name)
        if section != "none":
            yield published_filter(name, section)
