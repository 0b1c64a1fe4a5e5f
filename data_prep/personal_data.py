"""Replace what points at a person: e-mail addresses, IP addresses, phone numbers, IBANs.

E-mail and IP addresses are what datatrove's PIIFormatter finds (public IPv4 addresses alone, so
a version number of four parts is one, too). Phone numbers are found in international notation
alone, ``+`` and 8 to 15 digits (ITU-T E.123, E.164): in national notation they look like any
number, for which ROOTS left them out. An IBAN has its country's length and right check digits.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from datatrove.data import Document
from datatrove.pipeline.formatters import PIIFormatter

from components.config.schema.document_steps import PersonalData

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

    def __init__(self, settings: PersonalData) -> None:
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

    Word by word, since datatrove's pattern takes quadratic time on a long word such as an image
    in base64, e-mail addresses are looked for in those with an ``@`` alone.
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
