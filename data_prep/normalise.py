"""One spelling for what reads the same, and no characters that nobody sees.

The order makes it idempotent: what is removed could join a letter and its accent, and the
compatibility forms of some marks begin with a space.
"""

import re
import unicodedata

from datatrove.data import Document

from components.spec.document_steps import Normalise

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
