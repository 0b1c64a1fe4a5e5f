"""What tells two sides apart, for people."""

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from components.sharing.differences import Found, Side
from components.spec.groups import TITLES, Group, without_profile

LONGEST = 60


def print_differences(a: Side, b: Side, found: Found, notes: Sequence[str]) -> None:
    """Print a table for each group that has differences, then the verdict and the notes."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)
    for group, title in TITLES.items():
        if not found[group]:
            continue
        table = Table(title=title, box=None, title_justify="left")
        for column in ("key", a.label, b.label):
            table.add_column(column, overflow="fold")
        keys = shown(found, group)
        for key in keys:
            table.add_row(key, *(_short(value) for value in found[group][key]))
        console.print(table)
        if hidden := len(found[group]) - len(keys):
            console.print(f"and {hidden} keys of the two profiles in conf/cluster/")
        console.print()
    sys.stdout.write(verdict(found) + "\n")
    sys.stdout.writelines(f"note: {note}\n" for note in notes)


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
