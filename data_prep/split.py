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
class HeldOutSplit:
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


@dataclass(frozen=True)
class GroupRange:
    """The lowest and highest hash of a source's groups, and how many documents there are."""

    lowest: int
    highest: int
    documents: int


def group_hash(document: Document) -> int:
    """Map the group to 64 bits, evenly."""
    digest = hashlib.blake2b(document.group.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def measure_groups(documents: Iterable[Document]) -> GroupRange:
    """Read all documents once."""
    lowest, highest, num_documents = HASH_RANGE, -1, 0
    for document in documents:
        hashed = group_hash(document)
        lowest, highest = min(lowest, hashed), max(highest, hashed)
        num_documents += 1
    return GroupRange(lowest, highest, num_documents)


def choose_split(groups: GroupRange, fraction: float) -> HeldOutSplit:
    """Hold out ``fraction`` of the groups, at least one and not all."""
    base = int(fraction * HASH_RANGE)
    inside = fraction if groups.lowest == groups.highest else 0.0
    threshold = min(max(base, groups.lowest + 1), groups.highest)
    return HeldOutSplit(threshold=threshold, inside_fraction=inside)
