"""What is trained on and what is held out.

A document's side follows from a hash of its group alone: it does not change when documents are
added, and copies of a document never stand on both sides.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from data_prep.read import Document

HASH_RANGE = 1 << 64
WHITE_SPACE = re.compile(r"\s")


@dataclass(frozen=True)
class Split:
    """Hold out the groups whose hash is below ``threshold``.

    ``inside_fraction`` is the end of each document that is held out instead, where all
    documents are of one group; else 0.
    """

    threshold: int
    inside_fraction: float

    def train_text(self, document: Document) -> str:
        """Give the part of ``document`` to train on, empty if there is none."""
        if self.inside_fraction:
            return document.text[: self._cut(document.text)]
        return "" if self._is_held_out(document) else document.text

    def held_out_text(self, document: Document) -> str:
        """Give the part of ``document`` to hold out, empty if there is none."""
        if self.inside_fraction:
            return document.text[self._cut(document.text) :]
        return document.text if self._is_held_out(document) else ""

    def _is_held_out(self, document: Document) -> bool:
        return group_hash(document) < self.threshold

    def _cut(self, text: str) -> int:
        """Cut at the first white space behind the trained part, else wherever it ends."""
        cut = int(len(text) * (1 - self.inside_fraction))
        space = WHITE_SPACE.search(text, cut)
        return space.start() if space else cut


def group_hash(document: Document) -> int:
    """Map the group to 64 bits, evenly."""
    digest = hashlib.blake2b(document.group.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def choose_split(documents: Iterable[Document], fraction: float) -> tuple[Split, int]:
    """Hold out ``fraction`` of the groups, at least one and not all; count the documents."""
    base = int(fraction * HASH_RANGE)
    lowest, highest, num_documents = HASH_RANGE, -1, 0
    for document in documents:
        hashed = group_hash(document)
        lowest, highest = min(lowest, hashed), max(highest, hashed)
        num_documents += 1
    inside = fraction if lowest == highest else 0.0
    threshold = min(max(base, lowest + 1), highest)
    return Split(threshold=threshold, inside_fraction=inside), num_documents
