"""A proposal as Markdown, and as one self-contained HTML file of the same rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from components.report.html import render_template, write_page
from components.report.tables import Grid
from components.terminal import hide_folders, printable

Row = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class ProposalPart:
    """A heading, rows below it, and sentences below these."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    columns: Row = ("", "value", "source")


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """All that the page says, in the order in which it says it."""

    title: str
    why: str
    sections: tuple[ProposalPart, ...]


def write_proposal(proposal: Proposal, destination: Path) -> Path:
    """Write Markdown where the name ends so, else HTML; whole or not at all."""
    if destination.suffix == ".md":
        return write_page(markdown(proposal), destination)
    grids = [
        Grid(columns=section.columns, rows=section.rows, text_columns=len(section.columns))
        for section in proposal.sections
    ]
    parts = {"proposal": proposal, "grids": grids}
    return write_page(render_template("proposal/page.html.j2", parts), destination)


def markdown(proposal: Proposal) -> str:
    """Set the proposal as Markdown, a table a section."""
    return "\n".join([
        f"# {_plain(proposal.title)}",
        "",
        _plain(proposal.why),
        *_body(proposal),
    ])


def _body(proposal: Proposal) -> Iterator[str]:
    for section in proposal.sections:
        yield from ("", f"## {_plain(section.title)}", "")
        yield from _table(section)
        for note in section.notes:
            yield from ("", _plain(note))
    yield ""


def _table(section: ProposalPart) -> Iterator[str]:
    if not section.rows:
        yield "None."
        return
    yield f"| {' | '.join(map(_plain, section.columns))} |"
    yield "|---" * len(section.columns) + "|"
    for row in section.rows:
        yield f"| {' | '.join(map(_plain, row))} |"


def _plain(text: str) -> str:
    """Keep others' words from ending a cell or a line, and from being markup."""
    shown = printable(hide_folders(text))
    escaped = "".join(f"\\{sign}" if sign in "\\|`*_<>[]" else sign for sign in shown)
    return " ".join(escaped.split())
