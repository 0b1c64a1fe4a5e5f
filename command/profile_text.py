"""The profile of a run that has ended, for a terminal: that of the first rank that has one."""

from pathlib import Path

from components.report.profile import parts_grid, products_grid, read_profiles, waits_grid
from components.report.tables import terminal_table
from components.terminal import console

WIDTH = 160  # where nobody looks: no line is broken


def print_profile(run: Path) -> None:
    """Print where the time went, what products reached, and what waits, if it was profiled."""
    profiles = read_profiles(run)
    if not profiles:
        return
    first, *others = profiles
    found = [((), first)]
    out = console(width=WIDTH)
    steps = ", ".join(map(str, first["steps"]))
    out.print(f"profile of rank {first['rank']}, steps {steps}, by {first['clock']}:")
    out.print(terminal_table(parts_grid(found, lead=())))
    out.print(terminal_table(products_grid(found, lead=())))
    if first.get("machine") is None:
        out.print(
            "no limit: this cluster's profile has no figures of its hardware; "
            "python -m benchmarks.peaks measures them"
        )
    waits = waits_grid(found, lead=())
    if waits.rows:
        out.print("the host waits for its device, or would on one, in:")
        out.print(terminal_table(waits))
    if others:
        ranks = ", ".join(str(tree["rank"]) for tree in others)
        out.print(f"the report has ranks {ranks}, too")
