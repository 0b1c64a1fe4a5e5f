"""What the OSCAR project's annotator, Ungoliant, warns of: read from its files, or computed.

Rules and limits: github.com/oscar-project/ungoliant, src/transformers (tiny.rs,
sentence_filter.rs, header.rs, noisy.rs); Abadji et al., "Towards a Cleaner Document-Oriented
Multilingual Crawled Corpus" (arXiv 2201.06642).
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache

from datatrove.data import Document

from components.spec.document_steps import Annotations, LineShape


class AnnotationFilter:
    """Remove by the metadata that an OSCAR file brings with a document.

    As OpenGPT-X read it: any quality warning, a harmful-content perplexity that is too low
    (likely harmful) or too high (no text), or one of the categories of the UT1 blocklists.
    """

    name = "annotations"

    def __init__(self, settings: Annotations) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        found, settings = document.metadata, self.settings
        if warnings := found.get("quality_warnings"):
            return f"{self.name}: {' '.join(warnings)}"
        perplexity = found.get("harmful_pp")
        least, most = settings.min_harmful_perplexity, settings.max_harmful_perplexity
        if perplexity and not least <= perplexity <= most:
            return f"{self.name}: perplexity {perplexity:g}, not {least:g} to {most:g}"
        listed = set(settings.categories).intersection(found.get("categories") or ())
        return f"{self.name}: {' '.join(sorted(listed))}" if listed else None


class LineShapeFilter:
    """Compute the warnings (tiny, short_sentences, header, footer, noisy) of a bare text."""

    name = "line_shape"

    def __init__(self, settings: LineShape) -> None:
        self.settings = settings

    def __call__(self, document: Document) -> str | None:
        lines = document.text.removesuffix("\n").split("\n")
        warning = self._lines(lines) or self._letters(document.text)
        return f"{self.name}: {warning}" if warning else None

    def _lines(self, lines: Sequence[str]) -> str | None:
        settings = self.settings
        if len(lines) < settings.min_lines:
            return f"tiny, {len(lines)} < {settings.min_lines} lines"
        short = sum(len(line) <= settings.short_line for line in lines)
        if short > int(len(lines) * settings.short_lines):
            return f"short_sentences, {short} of {len(lines)} lines"
        edge = int(len(lines) * settings.edge)
        for warning, part in (("header", lines[:edge]), ("footer", lines[len(lines) - edge :])):
            short = sum(len(line.encode()) < settings.short_line for line in part)
            if short > int(edge * settings.short_edge_lines):
                return f"{warning}, {short} of {edge} lines short"
        return None

    def _letters(self, text: str) -> str | None:
        others = sum(count for char, count in Counter(text).items() if not is_letter(char))
        if others > int(len(text) * self.settings.non_letters):
            return f"noisy, {others / len(text):.2f} > {self.settings.non_letters:g} no letters"
        return None


@cache
def is_letter(char: str) -> bool:
    """Say whether Unicode calls it a letter or a mark on one."""
    return unicodedata.category(char)[0] in "LM"
