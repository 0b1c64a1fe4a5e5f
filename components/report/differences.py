"""What tells the recipes of several runs apart, by what each key decides."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from components.config import key_groups
from components.config.key_groups import TITLES, KeyGroup
from components.report.outcome import ReportEntry
from components.report.tables import Grid, differing_keys


@dataclass(frozen=True)
class DifferingKeys:
    """The differing keys of one group; ``hidden`` ones of profiles have no row."""

    title: str
    grid: Grid
    hidden: int

    @property
    def note(self) -> str:
        """Count the keys without a row."""
        which = "keys of the profiles in `conf/cluster/`, which follow from the machine."
        return f"And {self.hidden} {which}" if self.hidden else ""


def differences_by_group(entries: Sequence[ReportEntry]) -> list[DifferingKeys]:
    """Lay out the keys that differ, the weightiest group first."""
    differing = differing_keys(entries)
    computing = {key for e in entries for key in key_groups.computing_keys(e.run.recipe)}
    found: dict[KeyGroup | None, list[str]] = {}
    for key in differing:
        group = KeyGroup.MATHEMATICS if key in computing else key_groups.declared(key)
        found.setdefault(group, []).append(key)
    parts = []
    for group, title in (*TITLES.items(), (None, "of another version of the code")):
        if keys := found.get(group):
            shown = key_groups.without_profile(keys)
            grid = Grid(
                title=title.capitalize(),
                columns=("key", *(entry.label for entry in entries)),
                rows=[(key, *differing[key]) for key in shown],
                kind="differences",
                fold="keys",
            )
            parts.append(DifferingKeys(title, grid, len(keys) - len(shown)))
    return parts


def verdict(parts: Iterable[DifferingKeys]) -> str:
    """Describe in a line what the runs have in common."""
    titles = {part.title for part in parts}
    return ", ".join(
        f"{group.value}: {'differs' if TITLES[group] in titles else 'the same'}"
        for group in (KeyGroup.MATHEMATICS, KeyGroup.LAYOUT, KeyGroup.MACHINE)
    )
