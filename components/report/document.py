"""What every page is, a title above sections of figures, tables and text; and its writers.

A page is a function that returns a `ReportDocument`. All its words are plain text: the writers
keep those of others from being markup. In HTML what is between two backticks is set as code.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from components.report.figures import PlotlyFigure
from components.report.html import check_destination, render_document, write_page
from components.report.tables import Card, Grid, terminal_table
from components.terminal import hide_folders, printable

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Figure:
    """A chart by its name on the page, what plotly draws, and what it shows, in words.

    ``rows`` draws it on a terminal as wide as its argument says; no plotly is needed there.
    """

    name: str
    draw: Callable[[], PlotlyFigure]
    label: str
    title: str = ""
    rows: Callable[[int], Sequence[str]] | None = None


@dataclass(frozen=True)
class CodeBlock:
    """Text whose lines stay as they are; the lines of these numbers are marked."""

    text: str
    marked: frozenset[int] = frozenset()
    is_prose: bool = False  # long lines are broken


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader of HTML opens, below what says so; a terminal leaves them out."""

    summary: str
    blocks: Sequence["Grid | CodeBlock"]


# Figures of one tuple stand beside each other.
Block = Grid | Figure | tuple[Figure, ...] | CodeBlock | Fold | str


@dataclass(frozen=True)
class ReportSection:
    """A heading, a caption that explains what is below, and this; without it, nothing."""

    title: str
    blocks: Sequence[Block]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportDocument:
    """A page; ``tags`` are short words with the class that colours each."""

    kind: str
    title: str
    sections: Sequence[ReportSection]
    why: str = ""
    tags: Sequence[tuple[str, str]] = ()
    notices: Sequence[str] = ()
    cards: Sequence[Card] = ()
    is_wide: bool = False

    @property
    def filled(self) -> list[ReportSection]:
        """Leave out blocks without content, and sections without blocks."""
        sections = (
            ReportSection(one.title, [b for b in one.blocks if _has_content(b)], one.caption)
            for one in self.sections
        )
        return [one for one in sections if one.blocks]


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
    """Write Markdown where the name ends so, else HTML; ``script``: see `render_document`.

    Raises:
        RecipeError: the destination is a folder, or cannot be written.
    """
    check_destination(destination)
    is_markdown = destination.suffix == ".md"
    return write_page(
        as_markdown(document) if is_markdown else as_html(document, script), destination
    )


def as_html(document: ReportDocument, script: str | None = None) -> str:
    """Set a document as one page of HTML."""
    return render_document(document, script)


def as_markdown(document: ReportDocument) -> str:
    """Set a document as Markdown; a chart is the sentence that describes it."""
    cards = (f"{one.title}: {one.value}, {', '.join(one.notes)}" for one in document.cards)
    lines = [f"# {_escaped(document.title)}"]
    for text in (document.why, *document.notices, *cards):
        lines += ["", _escaped(text)]
    for section in document.filled:
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
                f"    {printable(hide_folders(line))}" for line in block.text.split("\n")
            )
        case Grid():
            yield from (f"{_escaped(name)}: {_escaped(text)}  " for name, text in block.alike)
            yield from ("", f"| {' | '.join(map(_escaped, block.columns))} |")
            yield "|---" * len(block.columns) + "|"
            yield from (f"| {' | '.join(map(_escaped, row))} |" for row in block.rows)
        case _:
            yield _escaped(block.summary) if isinstance(block, Fold) else ""
            for one in block.blocks if isinstance(block, Fold) else block:
                yield from ("", *_markdown_lines(one))


def _escaped(text: str) -> str:
    """Keep others' words from ending a cell or a line, and from being markup."""
    shown = printable(hide_folders(text))
    escaped = "".join(f"\\{sign}" if sign in "\\|`*_<>[]" else sign for sign in shown)
    return " ".join(escaped.split())


def print_document(document: ReportDocument, out: "Console") -> None:
    """Print what a page shows without being opened; captions and key figures stay there."""
    for text in (document.title, document.why, *document.notices):
        out.print(text)
    for section in document.filled:
        shown = [one for one in section.blocks if isinstance(one, str | Grid | Figure)]
        if shown:
            out.print()
            out.print(section.title, style="bold")
        for block in shown:
            if isinstance(block, Figure):
                for row in block.rows(out.width - 1) if block.rows else ():
                    out.print(f" {row}", no_wrap=True)
            else:
                out.print(terminal_table(block) if isinstance(block, Grid) else block)
