"""Generated sections of documentation pages, each between two HTML comments."""

from collections.abc import Sequence


def split_section(text: str, part: str, writer: str) -> tuple[str, str, str]:
    """Split a page into the text up to a section, the section, and the text after it.

    ``writer`` is the command that the first comment names.
    """
    start = f"<!-- {part}: written by `{writer}` -->\n"
    end = f"<!-- end of {part} -->\n"
    head, has_start, rest = text.partition(start)
    section, has_end, tail = rest.partition(end)
    assert has_start, f"the page has no start of {part}"
    assert has_end, f"the page has no end of {part}"
    return head + start, section, end + tail


def replace_section(text: str, part: str, writer: str, section: str) -> str:
    """Replace a generated section of a page."""
    head, _, tail = split_section(text, part, writer)
    return f"{head}{section}{tail}"


def table_line(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table; a bar in a cell becomes a slash."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"
