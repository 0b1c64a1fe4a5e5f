"""What tells runs apart, key by key, by what each key decides."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from components.report.outcome import Entry
from components.report.tables import Grid, Row, differing_keys
from components.spec.groups import TITLES, Group, computing_keys, declared, without_profile

_OTHER_VERSION = "of another version of the code"


@dataclass(frozen=True, kw_only=True)
class Differences:
    """The keys of one group on which the runs disagree; ``hidden`` ones follow from others."""

    title: str
    grid: Grid
    hidden: int


def differences_by_group(entries: Sequence[Entry]) -> tuple[Differences, ...]:
    """Lay out a table for each group that has differences, the weightiest first."""
    differing = differing_keys(entries)
    computing = frozenset[str]().union(*(computing_keys(e.run.recipe) for e in entries))
    found: dict[Group | None, list[str]] = {}
    for key in differing:
        group = Group.MATHEMATICS if key in computing else declared(key)
        found.setdefault(group, []).append(key)
    parts = []
    for group, title in (*TITLES.items(), (None, _OTHER_VERSION)):
        if keys := found.get(group):
            shown = without_profile(keys)
            rows = tuple(Row(cells=(key, *differing[key])) for key in shown)
            grid = Grid(columns=("key", *(e.label for e in entries)), rows=rows)
            parts.append(Differences(title=title, grid=grid, hidden=len(keys) - len(shown)))
    return tuple(parts)


def verdict(parts: Iterable[Differences]) -> str:
    """Say in a line what the runs have in common."""
    titles = {part.title for part in parts}
    said = (
        f"{group.value}: {'differs' if TITLES[group] in titles else 'the same'}"
        for group in (Group.MATHEMATICS, Group.LAYOUT, Group.MACHINE)
    )
    return ", ".join(said)
