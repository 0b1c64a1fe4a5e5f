"""What ranks that failed left: an error file each, and whose error was no other's doing."""

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from components.errors import RecipeError
from components.json_file import open_regular, parse_json

WAITING = "waits for other ranks in "  # what a rank says that hangs in a collective
_BROUGHT_DOWN = re.compile(
    r"Connection closed|Connection reset|Broken pipe|ncclRemoteError|remote process exited|"
    rf"{WAITING}"
)

# How torch's ``record`` begins an error file, up to the end of the message or of the file.
_MESSAGE_BEGUN = re.compile(
    r'\s*\{"message": (?:\{"message": )?"(?P<text>(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*)'
)
CUT_SHORT = "left an error file without a message: is the disk full?"
MOST_ERROR_BYTES, MOST_MESSAGE, READERS = 1 << 20, 10_000, 32

FIRST_FAILURE = "first_failure.json"  # below the run's folder ``ranks``, by the agent

# The exit status of a rank that could write no error, and of its agent: a user has to mend it.
MENDABLE = 2


@dataclass(frozen=True)
class RankError:
    """The error that a rank wrote, and when, in nanoseconds since the epoch."""

    rank: int
    message: str
    at: int

    @property
    def is_own(self) -> bool:
        """Whether it tells more than the loss of another rank, or the wait for one."""
        return self.message != CUT_SHORT and not _BROUGHT_DOWN.search(self.message)


def error_file(ranks: Path, rank: int) -> Path:
    """Where a rank writes its error, below the run's folder ``ranks``."""
    return ranks / f"error-{rank}.json"


def read_errors(ranks: Path) -> list[RankError]:
    """Read all error files, the rank's own errors first, the earliest of them foremost."""

    def read(found: tuple[int, Path]) -> RankError | None:
        rank, file = found
        try:
            return RankError(rank, message_of(file), file.stat().st_mtime_ns)
        except OSError:  # removed meanwhile, or not readable
            return None

    with ThreadPoolExecutor(READERS) as pool:  # a file system that is shared is slow, not busy
        errors = [one for one in pool.map(read, _error_files(ranks)) if one is not None]
    return sorted(errors, key=lambda error: (not error.is_own, error.at))


def forget_errors(ranks: Path) -> None:
    """Remove all error files: those who read them have told what they say."""
    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(lambda found: found[1].unlink(missing_ok=True), _error_files(ranks)))


def _error_files(ranks: Path) -> Iterator[tuple[int, Path]]:
    for file in ranks.glob("error-*.json"):
        rank = file.stem.removeprefix("error-")
        if rank.isdecimal() and not file.is_dir():
            yield int(rank), file


def message_of(file: Path) -> str:
    """Read the message that torch's ``record`` wrote; see `read_error`."""
    return read_error(file)[0]


def read_error(file: Path) -> tuple[str, str]:
    """Read the message and the traceback that torch's ``record`` wrote.

    A full disk cuts the file short. What is left of the message is returned then, and
    `CUT_SHORT` where nothing is left.

    Raises:
        OSError: the file cannot be opened.
    """
    try:
        with open_regular(file) as stream:
            raw = stream.read(MOST_ERROR_BYTES)
    except ValueError as error:
        return f"{file} {error}", ""
    traceback = ""
    try:
        tree = parse_json(raw, finite=False)["message"]
        if isinstance(tree, dict):
            traceback = str(tree.get("extraInfo", {}).get("py_callstack", ""))
            tree = tree["message"]
        message = str(tree)
    except (ValueError, KeyError, TypeError, AttributeError):
        message = _message_begun(raw.decode(errors="replace"))
    return message[:MOST_MESSAGE].encode(errors="replace").decode() or CUT_SHORT, traceback


def _message_begun(text: str) -> str:
    """Read the message of a file that is no JSON, as far as it goes."""
    if (found := _MESSAGE_BEGUN.match(text)) is None:
        return ""
    return str(json.loads(f'"{found["text"]}"', strict=False))


def seconds_between(errors: Sequence[RankError], file: Path) -> float:
    """Measure from the first error to the last change of ``file``; 0 without errors.

    The clock of their file system dated both. The clock of this machine may be another.
    """
    end = file.stat().st_mtime_ns
    return max(0.0, (end - min((error.at for error in errors), default=end)) / 1e9)


def describe_end(errors: Sequence[RankError], *, ranks: int) -> tuple[str, list[int]]:
    """Describe why a world of ``ranks`` ended, and which of them left no word.

    A rank that was killed leaves none, nor does one that its launcher ended. Where all that is
    told is the loss of others, those that left no word are what began it.
    """
    silent = sorted(set(range(ranks)) - {error.rank for error in errors})
    if not errors:
        return "no rank said why", silent
    first = errors[0]
    why = f"rank {first.rank}: {first.message}"
    if silent and not first.is_own:
        why = f"rank {', '.join(map(str, silent))} left no word; {why}"
    return why, silent


def raise_again(ranks: Path) -> None:
    """Raise what ended the ranks that start again, if only a user can mend it.

    Raises:
        RecipeError: that error.
    """
    errors = read_errors(ranks)
    if errors and (found := recipe_error(errors[0].message)):
        raise found


def recipe_error(message: str) -> RecipeError | None:
    """Make the error again that torch's ``record`` wrote as text, if it was one of a recipe."""
    kind, _, text = message.partition(": ")
    if kind != RecipeError.__name__:
        return None
    path, _, rest = text.partition(": ")
    problem, _, remedy = rest.partition("\n  ")
    return RecipeError(path, problem, remedy)
