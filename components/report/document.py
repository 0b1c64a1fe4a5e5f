"""Page document: a title and sections of figures, tables and text, with its writers.

A page is a function that returns a `ReportDocument`. All texts are plain: the writers escape
markup. In HTML, text between two backticks is set as code.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from components.report.figures import PlotlyFigure
from components.report.html import check_destination, render_document, write_page
from components.report.tables import Card, Grid, terminal_table
from components.terminal import escape_invisible, hide_folders

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Figure:
    """Chart: its name on the page, its plotly function, and a description in words.

    ``rows`` draws it for a terminal of the given width, without plotly.
    """

    name: str
    draw: Callable[[], PlotlyFigure]
    label: str
    title: str = ""
    rows: Callable[[int], Sequence[str]] | None = None


@dataclass(frozen=True)
class CodeBlock:
    """Preformatted text. The lines with the numbers in ``marked`` are highlighted."""

    text: str
    marked: frozenset[int] = frozenset()
    is_prose: bool = False  # long lines wrap


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader of HTML opens by clicking on ``summary``. A terminal skips them."""

    summary: str
    blocks: Sequence["Grid | CodeBlock"]


# The figures of a tuple are set side by side.
Block = Grid | Figure | tuple[Figure, ...] | CodeBlock | Fold | str


@dataclass(frozen=True)
class ReportSection:
    """Section with a heading, an explanatory caption and blocks; skipped without blocks."""

    title: str
    blocks: Sequence[Block]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportDocument:
    """Page. ``tags`` are short words, each with the CSS class of its color."""

    kind: str
    title: str
    sections: Sequence[ReportSection]
    why: str = ""
    tags: Sequence[tuple[str, str]] = ()
    notices: Sequence[str] = ()
    cards: Sequence[Card] = ()
    is_wide: bool = False

    @property
    def filled_sections(self) -> list[ReportSection]:
        """Sections without empty blocks. Sections without any block are skipped."""
        sections = (
            replace(section, blocks=[b for b in section.blocks if _has_content(b)])
            for section in self.sections
        )
        return [section for section in sections if section.blocks]

    @property
    def anchored_sections(self) -> dict[str, ReportSection]:
        """Sections by anchor name for the table of contents. Titles may be in any alphabet."""
        named: dict[str, ReportSection] = {}
        for section in self.filled_sections:
            name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
            while name in named:
                name += "-again"
            named[name] = section
        return named


def _has_content(block: Block) -> bool:
    match block:
        case Grid():
            return bool(block.rows or block.alike)
        case Fold():
            return any(map(_has_content, block.blocks))
        case _:
            return bool(block)


def write_document(
    document: ReportDocument, destination: Path, script: str | None = None
) -> Path:
    """Write Markdown if the suffix is ``.md``, else HTML. ``script``: see `render_document`."""
    check_destination(destination)
    is_markdown = destination.suffix == ".md"
    page = as_markdown(document) if is_markdown else render_document(document, script)
    return write_page(page, destination)


def as_markdown(document: ReportDocument) -> str:
    """Return the document as Markdown. A chart's description replaces the chart."""
    cards = (f"{card.title}: {card.value}, {', '.join(card.notes)}" for card in document.cards)
    lines = [f"# {_escaped(document.title)}"]
    for text in (document.why, *document.notices, *cards):
        lines += ["", _escaped(text)]
    for section in document.filled_sections:
        lines += ["", f"## {_escaped(section.title)}"]
        for block in (section.caption, *section.blocks):
            lines += ["", *_markdown_lines(block)] if block else []
    return "\n".join([*lines, ""])


def _markdown_lines(block: Block) -> Iterator[str]:
    match block:
        case str():
            yield _escaped(block)
        case Figure():
            yield _escaped(f"{block.title or 'Chart'}: {block.label}")
        case CodeBlock():
            yield from (
                f"    {escape_invisible(hide_folders(line))}" for line in block.text.split("\n")
            )
        case Grid():
            yield from (f"{_escaped(name)}: {_escaped(text)}  " for name, text in block.alike)
            yield from ("", f"| {' | '.join(map(_escaped, block.columns))} |")
            yield "|---" * len(block.columns) + "|"
            yield from (f"| {' | '.join(map(_escaped, row))} |" for row in block.rows)
        case _:
            yield _escaped(block.summary) if isinstance(block, Fold) else ""
            for part in block.blocks if isinstance(block, Fold) else block:
                yield from ("", *_markdown_lines(part))


def _escaped(text: str) -> str:
    """Escape markup in a text, and join its lines so that it fits a table cell."""
    shown = escape_invisible(hide_folders(text))
    escaped = "".join(f"\\{sign}" if sign in "\\|`*_<>[]" else sign for sign in shown)
    return " ".join(escaped.split())


def print_document(document: ReportDocument, out: "Console") -> None:
    """Print a page's unfolded content, without captions and cards."""
    for text in (document.title, document.why, *document.notices):
        out.print(text)
    for section in document.filled_sections:
        shown = [
            content for content in section.blocks if isinstance(content, str | Grid | Figure)
        ]
        if shown:
            out.print()
            out.print(section.title, style="bold")
        for block in shown:
            if isinstance(block, Figure):
                for row in block.rows(out.width - 1) if block.rows else ():
                    out.print(f" {row}", no_wrap=True)
            else:
                out.print(terminal_table(block) if isinstance(block, Grid) else block)
