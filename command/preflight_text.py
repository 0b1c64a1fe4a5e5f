"""The verdict on nodes as a table, a row for each node and check."""

import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from components.preflight.verdict import Judged, Verdict

_WIDTH = 160  # of a table that is piped


def print_verdict(verdict: Verdict) -> None:
    """Print all findings, the ways out of the bad ones, and the sum."""
    width = None if sys.stdout.isatty() else _WIDTH
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    table = Table("node", "check", "found", "expected", "rule", "verdict", box=None)
    for node in verdict.nodes:
        for one in node.findings:
            table.add_row(node.node, one.check, one.found, one.expected, one.rule, one.verdict)
    console.print(table)
    for line in remedies(verdict.nodes):
        console.print(line)
    console.print(
        f"{len(verdict.good)} of {len(verdict.nodes)} nodes are good, {verdict.needed} needed, "
        f"after {verdict.seconds:.1f} s"
    )


def remedies(nodes: tuple[Judged, ...]) -> Iterator[str]:
    """Say the way out of each bad finding once, with the nodes that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        for one in node.bad:
            found.setdefault((one.check, one.remedy), []).append(node.node)
    for (check, remedy), names in found.items():
        yield f"{check} on {' '.join(names)}: {remedy}"
