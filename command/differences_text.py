"""What tells two sides apart, for people."""

import json
from collections.abc import Sequence

from rich.table import Table

from components.sharing.differences import Found, Side
from components.spec.groups import TITLES, Group, without_profile
from components.terminal import console, tell

LONGEST = 60


def print_differences(a: Side, b: Side, found: Found, notes: Sequence[str]) -> None:
    """Print a table for each group that has differences, then the verdict and the notes."""
    out = console(width=160)
    for group, title in TITLES.items():
        if not found[group]:
            continue
        table = Table(title=title, box=None, title_justify="left")
        for column in ("key", a.label, b.label):
            table.add_column(column, overflow="fold")
        keys = shown(found, group)
        for key in keys:
            table.add_row(key, *(_short(value) for value in found[group][key]))
        out.print(table)
        if hidden := len(found[group]) - len(keys):
            out.print(f"and {hidden} keys of the two profiles in conf/cluster/")
        out.print()
    tell(verdict(found))
    for note in notes:
        tell(f"note: {note}")


def verdict(found: Found) -> str:
    """Say in a line what is the same and what is not."""
    words = ("mathematics", "layout", "machine")
    judged = [f"{'another' if found[Group(word)] else 'same'} {word}" for word in words]
    return ", ".join(judged)


def shown(found: Found, group: Group) -> list[str]:
    """List a group's keys, but not the whole profile of another machine."""
    return without_profile(found[group])


def _short(value: object) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
