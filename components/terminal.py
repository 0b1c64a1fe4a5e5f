"""Text on the terminal: what a file, a run folder or a scheduler says is shown, never obeyed.

Text is cleaned here, where it is printed, and nowhere else; nothing else writes to a terminal.
"""

import io
import logging
import os
import re
import sys
import unicodedata
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

STANDARD_ERROR = 2

# Control, format and surrogate characters, and the ends of lines that no line counter knows.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Unicode files these signs, which stand around Arabic, Syriac and Kaithi numbers, under format.
_VISIBLE = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
_JOINERS = frozenset("\u200c\u200d")
_FIRST_JOINING = "\u0590"  # Latin, Greek and Cyrillic come before it and join nothing
_C0_PICTURES, _DELETE, _DELETE_PICTURE = 0x2400, "\x7f", "\u2421"
_REPLACEMENT = "\ufffd"

_FOLDERS = re.compile(r"""(?<![\w./~<])(?:~\w*)?/(?!/)(?:[^/\s|`"',;]+/)*(?=[^/\s])""")

_format_warning = warnings.formatwarning


def printable(text: str) -> str:
    """Put one visible character for each that a terminal would obey or not show.

    These are control characters but newline and tab, and what is invisible or turns the
    direction of a line. A joiner stays after a letter, a mark or a symbol of a script that has
    joined forms, as Persian and emoji have; in Latin it would make two names look alike.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    pairs = zip("\n" + text, text, strict=False)
    return "".join(_shown(before, character) for before, character in pairs)


def hide_folders(text: str) -> str:
    """Keep the last part alone of each absolute path, in text that is published."""
    return _FOLDERS.sub("", text)


def _shown(before: str, character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    if unicodedata.category(character) not in _HIDDEN or character in _VISIBLE:
        return character
    joins = before >= _FIRST_JOINING and unicodedata.category(before)[0] in "LMS"
    if character in _JOINERS and joins:
        return character
    if character == _DELETE:
        return _DELETE_PICTURE
    return chr(_C0_PICTURES + ord(character)) if character < " " else _REPLACEMENT


def say(text: str) -> None:
    """Print a line on standard error: progress, warnings and errors."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def tell(text: str) -> None:
    """Print a line on standard output: the result of the command."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def say_at_once(text: str) -> None:
    """Print it from a signal handler, which may have interrupted a line or an import."""
    os.write(STANDARD_ERROR, f"{printable(text)}\n".encode())


def say_bytes(line: bytes) -> None:
    """Print an encoded line on standard error; this allocates no memory."""
    os.write(STANDARD_ERROR, line)


def console(
    *, stderr: bool = False, quiet: bool = False, width: int | None = None
) -> "Console":
    """Make a rich console that shows brackets and colons as they are.

    ``width`` is that of a file or a pipe; a terminal has its own.
    """
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        """Clean strings before they are laid out, and whatever else becomes a segment."""

        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(printable(text), **options)

        def render(
            self, renderable: "RenderableType", options: "ConsoleOptions | None" = None
        ) -> "Iterable[Segment]":
            for segment in super().render(renderable, options):
                if segment.control:  # rich's own: it moves the cursor of a progress bar
                    yield segment
                else:
                    yield Segment(printable(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    return PlainConsole(
        stderr=stderr,
        quiet=quiet,
        width=None if stream.isatty() else width,
        markup=False,
        emoji=False,
        highlight=False,
    )


def prepare_streams() -> None:
    """Let no encoding of the terminal, no log record and no warning get past `printable`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test's may be none
            stream.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.setLogRecordFactory(_PlainRecord)
    warnings.formatwarning = _plain_warning


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _PlainRecord(logging.LogRecord):
    """A record whose message is clean for the handlers of libraries, too."""

    def getMessage(self) -> str:  # noqa: N802 (the name that logging calls)
        return printable(super().getMessage())


def _plain_warning(*told: Any, **options: Any) -> str:
    return printable(_format_warning(*told, **options))


def is_utf8(text: str) -> bool:
    """Return whether Python could decode all bytes of an argument or a path."""
    return text.encode(errors="ignore").decode() == text
