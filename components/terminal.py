"""Terminal output: control characters from files, folders and schedulers have no effect.

Only this module writes to the terminal, and only this module escapes text.
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

# Unicode categories: control, format and surrogate characters; line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Visible signs around Arabic, Syriac and Kaithi numbers, which Unicode classifies as format.
_VISIBLE = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
_JOINERS = frozenset("\u200c\u200d")
_FIRST_JOINING = "\u0590"  # Latin, Greek and Cyrillic come before it and have no joined forms
_C0_PICTURES, _DELETE, _DELETE_PICTURE = 0x2400, "\x7f", "\u2421"
_REPLACEMENT = "\ufffd"

_FOLDERS = re.compile(r"""(?<![\w./~<])(?:~\w*)?/(?!/)(?:[^/\s|`"',;]+/)*(?=[^/\s])""")

_format_warning = warnings.formatwarning


def escape_invisible(text: str) -> str:
    """Replace each control or invisible character with one visible character.

    Newline and tab stay. Characters that change the direction of a line are replaced. A joiner
    stays after a letter, mark or symbol of a script with joined forms (Persian, emoji). In
    Latin text a joiner is replaced: two different names would look the same.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    pairs = zip("\n" + text, text, strict=False)
    return "".join(_shown(before, character) for before, character in pairs)


def hide_folders(text: str) -> str:
    """Shorten each absolute path to its last part, for text that is published."""
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


def log_line(text: str) -> None:
    """Print a line on standard error: progress, warnings and errors."""
    sys.stderr.write(escape_invisible(text) + "\n")
    sys.stderr.flush()


def print_output(text: str) -> None:
    """Print a line on standard output: the result of the command."""
    sys.stdout.write(escape_invisible(text) + "\n")
    sys.stdout.flush()


def say_at_once(text: str) -> None:
    """Print a line from a signal handler, which may interrupt another print or an import."""
    os.write(STANDARD_ERROR, f"{escape_invisible(text)}\n".encode())


def say_bytes(line: bytes) -> None:
    """Print an encoded line on standard error, without allocating memory."""
    os.write(STANDARD_ERROR, line)


def create_console(
    *, stderr: bool = False, quiet: bool = False, width: int | None = None
) -> "Console":
    """Return a rich console with literal brackets and colons; ``width`` is for files."""
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        """Console that escapes strings before layout, and all other segments after it."""

        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(escape_invisible(text), **options)

        def render(
            self, renderable: "RenderableType", options: "ConsoleOptions | None" = None
        ) -> "Iterable[Segment]":
            for segment in super().render(renderable, options):
                if segment.control:  # from rich itself: moves the cursor of a progress bar
                    yield segment
                else:
                    yield Segment(escape_invisible(segment.text), segment.style)

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
    """Configure streams, logging and warnings: all text passes `escape_invisible`.

    Characters that the terminal's encoding lacks are escaped with backslashes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # tests may replace the stream
            stream.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.setLogRecordFactory(_PlainRecord)
    warnings.formatwarning = _plain_warning


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escape_invisible(super().format(record))


class _PlainRecord(logging.LogRecord):
    """Log record with an escaped message, for the handlers of libraries, too."""

    def getMessage(self) -> str:  # noqa: N802 (the name that logging calls)
        return escape_invisible(super().getMessage())


def _plain_warning(*arguments: Any, **options: Any) -> str:
    return escape_invisible(_format_warning(*arguments, **options))


def is_utf8(text: str) -> bool:
    """Return whether all bytes of an argument or a path are valid UTF-8."""
    return text.encode(errors="ignore").decode() == text
