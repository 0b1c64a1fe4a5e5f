"""Differences between the recipes of several runs, by the group of each key."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from components.config import key_groups
from components.config.key_groups import TITLES, KeyGroup
from components.report.outcome import ReportEntry
from components.report.tables import Grid, differing_keys


@dataclass(frozen=True)
class DifferingKeys:
    """Differing keys of one group. ``hidden`` counts the profile keys without a row."""

    title: str
    grid: Grid
    hidden: int

    @property
    def omission_note(self) -> str:
        """Note on the number of keys without a row."""
        which = "keys of the profiles in `conf/cluster/`, which depend on the machine."
        return f"And {self.hidden} {which}" if self.hidden else ""


def differences_by_group(entries: Sequence[ReportEntry]) -> list[DifferingKeys]:
    """Return tables of the keys that differ, the most important group first."""
    differing = differing_keys(entries)
    computing = {key for e in entries for key in key_groups.computing_keys(e.run.recipe)}
    group_keys: dict[KeyGroup | None, list[str]] = {}
    for key in differing:
        group = (
            KeyGroup.MATHEMATICS if key in computing else key_groups.find_declared_group(key)
        )
        group_keys.setdefault(group, []).append(key)
    parts = []
    for group, title in (*TITLES.items(), (None, "from another version of the code")):
        if keys := group_keys.get(group):
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


def describe_groups(parts: Iterable[DifferingKeys]) -> str:
    """Describe in one line which groups of keys are the same in all runs."""
    titles = {part.title for part in parts}
    return ", ".join(
        f"{group.value}: {'differs' if TITLES[group] in titles else 'the same'}"
        for group in (KeyGroup.MATHEMATICS, KeyGroup.LAYOUT, KeyGroup.MACHINE)
    )
