"""What went into a task, what came out, and why the rest was removed.

Every document is counted once, by source and language: in = out + removed, or it refuses.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_EXAMPLES = 3  # for each reason
EXAMPLE_CHARACTERS = 200


@dataclass
class Count:
    """Documents, bytes of UTF-8 text, removed documents by reason, replaced places by kind."""

    documents_in: int = 0
    documents_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Count") -> None:
        self.documents_in += other.documents_in
        self.documents_out += other.documents_out
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        _add(self.removed, other.removed)
        _add(self.replaced, other.replaced)

    def is_balanced(self) -> bool:
        return self.documents_in == self.documents_out + sum(self.removed.values())


@dataclass
class DocumentTally:
    """Counts by source and language, and the first few documents that each reason removed.

    ``groups`` has the lowest and highest hash of a source's groups, where a pass says them.
    """

    counts: dict[str, dict[str, Count]] = field(default_factory=dict)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)

    def keep(
        self,
        source: str,
        language: str,
        bytes_in: int,
        bytes_out: int,
        replaced: Mapping[str, int],
    ) -> None:
        """Count a document that stays, and what was replaced in it."""
        self._of(source, language).add(Count(1, 1, bytes_in, bytes_out, {}, dict(replaced)))

    def remove(self, source: str, language: str, text: str, reason: str) -> None:
        """Count a document that goes, under the part of ``reason`` before the colon."""
        short = reason.partition(":")[0]
        self._of(source, language).add(Count(1, 0, _size(text), 0, {short: 1}))
        examples = self.examples.setdefault(short, [])
        if len(examples) < MOST_EXAMPLES:
            examples.append({"why": reason, "text": text[:EXAMPLE_CHARACTERS]})

    def hash_group(self, source: str, hashed: int) -> None:
        """Take note of the hash of the group of a document that stays."""
        lowest, highest = self.groups.get(source, (hashed, hashed))
        self.groups[source] = min(lowest, hashed), max(highest, hashed)

    def merge(self, other: "DocumentTally") -> None:
        """Add the tally of a task that comes after this one."""
        for source, languages in other.counts.items():
            for language, count in languages.items():
                self._of(source, language).add(count)
        for reason, examples in other.examples.items():
            mine = self.examples.setdefault(reason, [])
            mine += examples[: MOST_EXAMPLES - len(mine)]
        for source, ends in other.groups.items():
            for hashed in ends:
                self.hash_group(source, hashed)

    def of_source(self, source: str) -> Count:
        """Sum over languages."""
        total = Count()
        for count in self.counts.get(source, {}).values():
            total.add(count)
        return total

    def check(self) -> None:
        """Assert that no document is lost and none counted twice."""
        for source, languages in self.counts.items():
            for language, count in languages.items():
                assert count.is_balanced(), f"{source}, {language}: in is not out + removed"

    def _of(self, source: str, language: str) -> Count:
        return self.counts.setdefault(source, {}).setdefault(language, Count())


def merge_tallies(tallies: Iterable[DocumentTally]) -> DocumentTally:
    """Sum the tallies of tasks, in their order."""
    total = DocumentTally()
    for tally in tallies:
        total.merge(tally)
    return total


def tally_of(tree: Mapping[str, Any]) -> DocumentTally:
    """Read a tally back from JSON."""
    counts = {
        source: {language: Count(**count) for language, count in languages.items()}
        for source, languages in tree["counts"].items()
    }
    groups = {source: (lowest, highest) for source, (lowest, highest) in tree["groups"].items()}
    return DocumentTally(counts, dict(tree["examples"]), groups)


def _size(text: str) -> int:
    return len(text.encode())


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, number in more.items():
        total[name] = total.get(name, 0) + number
