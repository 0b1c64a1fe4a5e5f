"""The verdict on nodes as a table, a row for each node and check."""

from collections.abc import Iterator

from rich.table import Table

from components.preflight.verdict import Judged, Verdict
from components.terminal import console

_WIDTH = 160  # of a table that is piped


def print_verdict(verdict: Verdict) -> None:
    """Print all findings, the ways out of the bad ones, and the sum."""
    out = console(width=_WIDTH)
    table = Table("node", "check", "found", "expected", "rule", "verdict", box=None)
    for node in verdict.nodes:
        for one in node.findings:
            table.add_row(node.node, one.check, one.found, one.expected, one.rule, one.verdict)
    out.print(table)
    for line in remedies(verdict.nodes):
        out.print(line)
    out.print(
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
