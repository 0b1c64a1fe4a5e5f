"""The lines in which a job script differs from another script, and the script restored.

A hunk has the lines removed and added. A removed line that is unique in the base locates it;
otherwise ``@N LINE`` does: the hunk begins N lines after the start of a unique line.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher


def list_hunks(base: Sequence[str], lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield the hunks that turn the base into the lines."""
    matcher = SequenceMatcher(None, base, lines, autojunk=False)
    for kind, start, end, first, last in matcher.get_opcodes():
        if kind == "equal":
            continue
        hunk = [f"-{line}" for line in base[start:end]]
        hunk += [f"+{line}" for line in lines[first:last]]
        if start == end or base.count(base[start]) > 1:
            unique = (place for place in range(start) if base.count(base[place]) == 1)
            anchor = max(unique, default=start)
            hunk.insert(0, f"@{start - anchor} {base[anchor]}")
        yield hunk


def restore_lines(base: Sequence[str], hunks: Sequence[Sequence[str]]) -> list[str]:
    """Apply hunks to the base."""
    lines, done = list[str](), 0
    for hunk in hunks:
        removed = [line[1:] for line in hunk if line.startswith("-")]
        offset, place = "0", removed[0] if removed else ""
        if hunk[0].startswith("@"):
            offset, _, place = hunk[0][1:].partition(" ")
        start = base.index(place) + int(offset)
        assert base[start : start + len(removed)] == removed
        lines += base[done:start]
        lines += [line[1:] for line in hunk if line.startswith("+")]
        done = start + len(removed)
    return [*lines, *base[done:]]
